// The fuzz target of pixels: a JPEG that the core decodes, and libjpeg-turbo without a warning, has
// the same pixels in both, on every SIMD level, with seek points and without.
//
// Inputs have the layout of fuzz_decode.cpp's, so that both share a corpus; only their JPEG is
// used. libjpeg-turbo is the system's (Debian: libjpeg62-turbo-dev), without instrumentation; the
// one in Pillow decodes the same.
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

// It needs <cstdio> before it.
#include <jpeglib.h>

#include "jpeg/probe.h"
#include "jpeg/seek_points.h"
#include "sample.h"
#include "simd/kernels.h"

using namespace fastdata;

namespace {

constexpr size_t kControl = 16;
constexpr int kMaxPixels = 128 * 128;

struct Failure : jpeg_error_mgr {
  jmp_buf jump;
};

void jump_out(j_common_ptr cinfo) { longjmp(static_cast<Failure*>(cinfo->err)->jump, 1); }
void say_nothing(j_common_ptr) {}

/// RGB; false: libjpeg finds something wrong, if only a warning.
bool decode_by_libjpeg(ByteSpan jpeg, std::vector<uint8_t>& out) {
  jpeg_decompress_struct d;
  Failure failure;
  d.err = jpeg_std_error(&failure);
  failure.error_exit = jump_out;
  failure.output_message = say_nothing;
  jpeg_create_decompress(&d);
  if (setjmp(failure.jump)) {
    jpeg_destroy_decompress(&d);
    return false;
  }
  jpeg_mem_src(&d, jpeg.data, jpeg.size);
  jpeg_read_header(&d, TRUE);
  d.out_color_space = JCS_RGB;
  jpeg_start_decompress(&d);
  const size_t row = size_t{d.output_width} * 3;
  while (d.output_scanline < d.output_height) {
    JSAMPROW rows[1] = {out.data() + d.output_scanline * row};
    jpeg_read_scanlines(&d, rows, 1);
  }
  jpeg_finish_decompress(&d);
  const bool sound = failure.num_warnings == 0;
  jpeg_destroy_decompress(&d);
  return sound;
}

long compared = 0, refused = 0;      // refused: what libjpeg decodes
std::map<std::string, long> causes;  // of refusals; docs/reliability.md tells them

Status decode(const Sample& given, const ImageInfo& info, std::vector<uint8_t>& out) {
  static SampleDecoder decoder;
  Sample sample = given;
  SampleOptions options;
  sample.cut = whole_cut(info.width, info.height);
  out.assign(size_t{3} * info.width * info.height, 0);
  sample.output.data = out.data();
  sample.output.width = info.width;
  sample.output.height = info.height;
  sample.output.row_stride = ptrdiff_t{3} * info.width;
  return decoder.run(sample, options);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool registered =
      std::atexit([] {
        std::printf("stat::compared_with_libjpeg: %ld\nstat::refused_though_sound: %ld\n", compared,
                    refused);
        for (const auto& [cause, times] : causes)
          std::printf("cause of %ld: %s\n", times, cause.c_str());
      }) == 0;
  (void)registered;
  if (size < kControl + 2) return 0;
  use_vector(VectorUse::always);
  const size_t table = data[kControl] | data[kControl + 1] << 8;
  if (size < kControl + 2 + table) return 0;
  const ByteSpan jpeg{data + kControl + 2 + table, size - kControl - 2 - table};
  const ImageInfo info = probe(jpeg);
  if (!info.native.ok() || static_cast<int64_t>(info.width) * info.height > kMaxPixels) return 0;

  std::vector<uint8_t> expected(size_t{3} * info.width * info.height), out;
  if (!decode_by_libjpeg(jpeg, expected)) return 0;
  Sample sample;
  sample.jpeg = jpeg;
  select_kernels(best_level());
  const SeekPoints built = std::move(build_seek_points({jpeg}, 1 + data[1])[0]);
  for (const Level level : kLevels) {
    if (!has_level(level)) continue;
    select_kernels(level);
    for (const bool seeking : {false, true}) {
      if (seeking && !built.status.ok()) continue;
      sample.seek_points = {};
      if (seeking) sample.seek_points = {built.packed.data(), built.packed.size()};
      if (const Status status = decode(sample, info, out); !status.ok()) {
        refused++;
        causes[status.detail]++;
      } else if (compared++; out != expected) {
        std::fprintf(stderr, "%s differs from libjpeg-turbo, seek points: %d\n", level_name(level),
                     seeking);
        std::abort();
      }
    }
  }
  return 0;
}
