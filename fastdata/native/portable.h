// Logarithm, exponential, sine and cosine from additions, multiplications and divisions alone,
// which IEEE 754 defines to the bit. The C library's differ in the last bit between versions, but
// draws (a crop, an angle) must be equal on every machine. Within 1 ulp or so.
//
// After a reduction of the range, series whose first omitted term is below 2^-56.
#pragma once

#include <cmath>

namespace fastdata {

// ln 2 in two parts; multiples of the first by up to 2^11 are exact.
constexpr double kLn2High = 0x1.62e42fefap-1, kLn2Low = 0x1.cf79abc9e3b3ap-40;

/// Logarithm of x above 0.
inline double portable_log(double x) {
  int exponent;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < 0x1.6a09e667f3bcdp-1) {  // the square root of 1/2
    mantissa *= 2;
    exponent--;
  }
  // 2 atanh(s).
  const double s = (mantissa - 1) / (mantissa + 1), s2 = s * s;
  double sum = 0;
  for (int odd = 25; odd >= 3; odd -= 2) sum = (sum + 1.0 / odd) * s2;
  return exponent * kLn2High + (exponent * kLn2Low + (2 * s + 2 * s * sum));
}

/// Exponential of x from -700 to 700.
inline double portable_exp(double x) {
  const double k = std::nearbyint(x * 0x1.71547652b82fep+0);  // x / ln 2
  const double r = (x - k * kLn2High) - k * kLn2Low;
  double sum = 0;
  for (int n = 14; n >= 1; n--) sum = (sum + 1) * r / n;
  return std::ldexp(1 + sum, static_cast<int>(k));
}

/// Sine and cosine of x, at most 2^20 turns.
inline void portable_sine_cosine(double x, double& sine, double& cosine) {
  // pi / 2 in three parts; multiples of the first two by up to 2^22 are exact.
  constexpr double kHigh = 0x1.921fb544p+0, kMiddle = 0x1.0b4611a6p-34,
                   kLow = 0x1.3198a2e037073p-69;
  const double quarters = std::nearbyint(x * 0x1.45f306dc9c883p-1);  // 2 x / pi
  const double r = ((x - quarters * kHigh) - quarters * kMiddle) - quarters * kLow, r2 = r * r;
  double s = 0, c = 0;
  for (int n = 18; n >= 2; n -= 2) {
    c = (1 + c) * -r2 / (n * (n - 1));
    s = (1 + s) * -r2 / (n * (n + 1));
  }
  s = r + r * s;
  c = 1 + c;
  const int which = static_cast<int>(static_cast<long long>(quarters) & 3);
  const double first = which & 1 ? c : s, second = which & 1 ? s : c;
  sine = which & 2 ? -first : first;
  cosine = which == 1 || which == 2 ? -second : second;
}

}  // namespace fastdata
