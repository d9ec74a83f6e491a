// The fuzz target: any bytes as a JPEG, as a seek table, as a request for a region.
// Nothing may crash or trip a sanitizer, and all SIMD paths must agree, as must readers of headers.
//
// An input is 16 control bytes, a seek table's length (2 bytes) and bytes, and a JPEG.
// The table's length and header CRC are set right, so that what follows them is reached.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "io/crc32c.h"
#include "simd/kernels.h"
#include "jpeg/jpeg_header.h"
#include "jpeg/probe.h"
#include "sample.h"
#include "jpeg/seek_points.h"

using namespace fastdata;

namespace {

constexpr size_t kControl = 16;
constexpr int kMaxPixels = 64 * 64;  // larger images only slow the search down

struct Request {
  Level level;
  bool compare;    // with the scalar path
  bool use_built;  // decode from the table that the JPEG gives
  bool use_given;  // decode from the table in the input
  int stride;
  SampleOptions options;
  Sample sample;
};

Request read_request(const uint8_t* c) {
  Request r;
  static const Level kLevels[] = {best_level(), Level::avx2, Level::scalar, best_level()};
  r.level = kLevels[c[0] & 3];
  if (!has_level(r.level)) r.level = Level::scalar;
  r.compare = c[0] & 4;
  r.use_built = c[0] & 8;
  r.use_given = c[0] & 16;
  r.stride = 1 + c[1];
  r.sample.output.width = 1 + (c[3] & 63);
  r.sample.output.height = 1 + (c[4] & 63);
  Cut& cut = r.sample.cut;
  cut = whole_cut(r.sample.output.width, r.sample.output.height);
  cut.flip = (c[0] & 32) != 0;
  cut.whole = (c[0] & 128) != 0;
  cut.filter = c[2] & 3;
  if (cut.filter == 0 && c[3] & 64) cut.filter = kLastFilter;
  r.sample.output.type = static_cast<DataType>(c[2] >> 2 & 3);
  // The output as a window of a larger resize, mostly one that lies in it.
  if (c[2] & 16) {
    cut.size[0] = r.sample.output.width + c[12];
    cut.size[1] = r.sample.output.height + c[13];
    cut.window[0] = c[14] * (c[12] + 1) / 252;
    cut.window[1] = c[15] * (c[13] + 1) / 252;
    cut.padding = c[2] >> 6 & 1;  // then it may reach outside
    if (cut.padding) {
      cut.window[0] -= c[13] & 63;
      cut.window[1] -= c[12] & 63;
    }
    if (c[2] & 32) {  // or any
      cut.size[0] = static_cast<int8_t>(c[12]);
      cut.size[1] = static_cast<int8_t>(c[13]) * (1 << (c[2] >> 6) * 8);
      cut.window[0] = static_cast<int8_t>(c[14]) * (1 << 24);
      cut.window[1] = static_cast<int8_t>(c[15]);
    }
  }
  return r;
}

/// Checks that all readers of a header agree on it.
void check_header(ByteSpan image, const ImageInfo& info) {
  JpegHeader frame, header;
  (void)read_frame(image, frame);
  const bool native = read_header(image, header).ok();
  const int orientation = exif_orientation(frame);
  const bool same = info.width == header.width && info.height == header.height &&
                    frame.width == header.width && frame.height == header.height &&
                    exif_orientation(header) == orientation;
  if (orientation < 0 || orientation > 8 || (native ? !same : is_plain_jpeg(image))) {
    std::fprintf(stderr, "%d x %d as probed, %d x %d as read, orientation %d\n", info.width,
                 info.height, header.width, header.height, orientation);
    std::abort();
  }
}

/// A box that lies in the image more often than not.
Box read_box(const uint8_t* c, int width, int height) {
  const int w = std::min(width, 4096), h = std::min(height, 4096);
  const int x0 = c[0] * w / 250, y0 = c[1] * h / 250;
  return {x0, y0, x0 + 1 + c[2] * w / 250, y0 + 1 + c[3] * h / 250};
}

/// Decodes into memory of exactly the output's size, so that a byte too many shows.
Code decode(Request& r, std::vector<uint8_t>& out) {
  static SampleDecoder decoder;
  static const std::vector<float> scale(3 * Kernels::kPeriod, 1 / 57.f);
  static const std::vector<float> offset(3 * Kernels::kPeriod, -2.f);
  Output& output = r.sample.output;
  const size_t row = static_cast<size_t>(output.width) * 3 * size_of(output.type);
  out.assign(row * output.height, 0);
  output.data = out.data();
  output.row_stride = static_cast<ptrdiff_t>(row);
  output.scale = scale.data();
  output.offset = offset.data();
  return decoder.run(r.sample, r.options).code;
}

void decode_on_paths(Request& r) {
  static std::vector<uint8_t> out, expected;
  select_kernels(r.level);
  const Code code = decode(r, out);
  if (!r.compare || r.level == Level::scalar) return;
  select_kernels(Level::scalar);
  const Code scalar_code = decode(r, expected);
  if (code != scalar_code || (code == Code::ok && out != expected)) {
    std::fprintf(stderr, "%s: %s, scalar: %s\n", level_name(r.level), code_name(code),
                 code_name(scalar_code));
    std::abort();
  }
}

/// Seek points of the JPEG and of others beside it: itself, and cut short. Its neighbours in
/// a batch must not matter to what an image gets.
std::vector<SeekPoints> build_together(ByteSpan jpeg, int stride) {
  const ByteSpan half{jpeg.data, jpeg.size / 2}, most{jpeg.data, jpeg.size - jpeg.size / 8};
  const auto built = build_seek_points({jpeg, half, jpeg, most, half, jpeg}, stride);
  const SeekPoints alone = std::move(build_seek_points({jpeg}, stride)[0]);
  for (size_t i : {0, 2, 5})
    if (built[i].status.ok() != alone.status.ok() || built[i].packed != alone.packed) {
      std::fprintf(stderr, "image %zu of a batch: %s, alone: %s\n", i, built[i].status.detail,
                   alone.status.detail);
      std::abort();
    }
  return built;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kControl + 2) return 0;
  use_vector(VectorUse::always);
  Request r = read_request(data);
  const size_t table_size =
      std::min<size_t>(data[kControl] | data[kControl + 1] << 8, size - kControl - 2);
  std::vector<uint8_t> given(data + kControl + 2, data + kControl + 2 + table_size);
  // A copy of exactly its size, for the sanitizer to see reads beyond the end.
  const std::vector<uint8_t> bytes(data + kControl + 2 + table_size, data + size);
  const ByteSpan jpeg{bytes.data(), bytes.size()};

  const ImageInfo info = probe(jpeg);
  check_header(jpeg, info);
  if (!info.native.ok()) return 0;
  r.sample.jpeg = jpeg;
  const Box box = read_box(data + 5, info.width, info.height);
  Cut& cut = r.sample.cut;
  std::copy_n(std::array{box.x0, box.y0, box.x1, box.y1}.data(), 4, cut.box);
  const Box needed = cut.whole ? Box{0, 0, info.width, info.height} : box;
  if (static_cast<int64_t>(needed.width()) * needed.height() > kMaxPixels) return 0;
  // Rows above the region are decoded too, and rows of points are built for all.
  if (static_cast<int64_t>(info.width) * info.height > 128 * kMaxPixels) return 0;

  decode_on_paths(r);
  if (r.use_built) {
    select_kernels(r.level);
    // One in eight: seven builds take most of an execution's time.
    const bool together = (data[9] & 7) == 7;
    const std::vector<SeekPoints> built =
        together ? build_together(jpeg, r.stride) : build_seek_points({jpeg}, r.stride);
    if (built[0].status.ok()) {
      r.sample.seek_points = {built[0].packed.data(), built[0].packed.size()};
      decode_on_paths(r);
    }
  }
  if (r.use_given && given.size() >= 12) {
    JpegHeader header;
    if (!read_header(jpeg, header).ok()) return 0;
    const uint32_t length = static_cast<uint32_t>(jpeg.size);
    const uint32_t crc = crc32c({jpeg.data, header.scan_offset});
    given[0] = 1;
    std::memcpy(given.data() + 4, &length, 4);
    std::memcpy(given.data() + 8, &crc, 4);
    if ((data[9] & 8) && given.size() >= 32) {
      // Of version 2, which says these itself.
      const uint32_t scan = static_cast<uint32_t>(header.scan_offset);
      const uint16_t size[] = {static_cast<uint16_t>(header.width),
                               static_cast<uint16_t>(header.height)};
      const uint8_t mcu[] = {static_cast<uint8_t>(header.mcu_width / 8),
                             static_cast<uint8_t>(header.mcu_height / 8),
                             static_cast<uint8_t>(header.component_count)};
      given[0] = 2;
      std::memcpy(given.data() + 16, &scan, 4);
      std::memcpy(given.data() + 20, &length, 4);
      std::memcpy(given.data() + 24, size, 4);
      std::memcpy(given.data() + 28, mcu, 3);
    }
    r.sample.seek_points = {given.data(), given.size()};
    decode_on_paths(r);
  }
  return 0;
}
