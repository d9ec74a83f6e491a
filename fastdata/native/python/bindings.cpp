// The Python boundary. `make lint` generates its types from the signatures and docstrings here.
// Arguments are checked in Python for their meaning, here for what memory safety
// needs.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdlib>
#include <string>
#include <tuple>

#include "python/bindings.h"
#include "io/crc32c.h"
#include "io/extents.h"
#include "png/png.h"
#include "simd/kernels.h"
#include "jpeg/probe.h"
#include "python/python_view.h"
#include "python/released.h"
#include "jpeg/seek_points.h"
#include "jpeg/segments.h"

namespace fastdata {
namespace {

auto probe_python(ByteSpan data) {
  const ImageInfo info = probe(data);
  return std::make_tuple(std::string(info.encoding), info.width, info.height, info.components,
                         std::string(info.sampling), info.progressive, info.orientation,
                         std::string(code_name(info.native.code)), std::string(info.native.detail),
                         info.native.offset);
}

std::vector<std::tuple<int, size_t, size_t>> jpeg_segments(ByteSpan jpeg) {
  std::vector<std::tuple<int, size_t, size_t>> found;
  size_t at = 2;
  uint8_t marker;
  Segment segment;
  for (; next_segment(jpeg, at, marker, segment).ok() && marker != kSos; at = segment.end())
    found.emplace_back(marker, at, segment.end());
  return found;
}

py::list build_seek_points_python(const py::sequence& data, int stride) {
  std::vector<View> views;
  std::vector<ByteSpan> jpegs;
  for (const py::handle one : data) {
    views.emplace_back(one);
    jpegs.push_back(views.back().bytes());
  }
  std::vector<SeekPoints> built;
  {
    const Released release;
    built = build_seek_points(jpegs, stride);
  }
  py::list results;
  for (const auto& [s, packed] : built)
    results.append(py::make_tuple(as_bytes(packed), code_name(s.code), s.detail, s.offset));
  return results;
}

Status png_pixels_python(const PngHeader& header, ByteSpan inflated, ByteSpan palette,
                         const py::object& out) {
  const View pixels(out, /*writable=*/true);
  if (!pixels.is_integers(1, 3) || pixels->shape[0] > header.height ||
      pixels->shape[1] != header.width || pixels->shape[2] != header.channels())
    throw py::value_error("out must be uint8, rows x width x channels, contiguous");
  const Released release;
  return png_pixels(header, inflated, palette, static_cast<int>(pixels->shape[0]),
                    static_cast<uint8_t*>(pixels->buf));
}

std::vector<std::string> simd_levels() {
  std::vector<std::string> names;
  for (Level level : kLevels)
    if (has_level(level)) names.emplace_back(level_name(level));
  return names;
}

std::string join(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

template <size_t kCount>
py::tuple names(const char* const (&from)[kCount]) {
  py::tuple all(kCount);
  for (size_t i = 0; i < kCount; i++) all[i] = from[i];
  return all;
}

Level parse_simd(const std::string& name) {
  Level level;
  if (!parse_level(name, level))
    throw py::value_error("must be scalar, avx2, avx512 or neon, not '" + name + "'");
  return level;
}

void set_simd(const std::string& name) {
  if (!select_kernels(parse_simd(name)))
    throw py::value_error(name + ", which this processor lacks: it has " + join(simd_levels()));
}

void use_vector_named(const std::string& use) {
  if (use == "measured")
    use_vector(VectorUse::measured);
  else if (use == "always")
    use_vector(VectorUse::always);
  else if (use == "never")
    use_vector(VectorUse::never);
  else
    throw std::invalid_argument("use: measured, always or never");
}

}  // namespace
}  // namespace fastdata

PYBIND11_MODULE(_native, m) {
  using namespace fastdata;
  m.doc() = "The C++ core of fastdata; use fastdata.decode.";

  if (const char* forced = std::getenv("FASTDATA_SIMD"); forced && *forced) {
    try {
      set_simd(forced);
    } catch (const py::value_error& e) {
      throw py::import_error("FASTDATA_SIMD: " + std::string(e.what()));
    }
  }
  m.def("simd", [] { return level_name(kernels().level); }, "Return the instruction set in use.");
  m.def("set_simd", &set_simd, py::arg("level"),
        "Choose scalar, avx2, avx512 or neon, as FASTDATA_SIMD does at import. Not while a batch "
        "runs.");
  m.def("simd_levels", &simd_levels,
        "Return the instruction sets of this processor, the plainest first.");
  m.def(
      "simd_features", [](const std::string& name) { return level_features(parse_simd(name)); },
      py::arg("level"), "Return the CPUID features that a level requires.");
  m.attr("CODES") = names(kCodeNames);
  m.attr("ENCODINGS") = names(kEncodingNames);
  m.attr("PARTIAL_BYTES") = kPartialBytes;
  m.def("use_vector", &use_vector_named, py::arg("use"),
        "Choose when entropy decoding uses a vector's lanes: always, never, measured.");
  m.def("vector_regions", &vector_regions,
        "Return the number of regions that this process has decoded in a vector's lanes.");

  m.def("crc32c", &crc32c, py::arg("data"), py::arg("crc") = 0, py::call_guard<Released>());
  m.attr("CRC32C_BY_INSTRUCTION") = crc32c_by_instruction();
  m.def("crc32c_combine", &crc32c_combine, py::arg("crc_a"), py::arg("crc_b"), py::arg("length_b"));
  py::class_<PngHeader>(m, "PngHeader",
                        "IHDR chunk of a PNG. numbers: pixels are numbers rather than colours.")
      .def(py::init([](int width, int height, int depth, uint8_t colour, bool numbers) {
             return PngHeader{width, height, depth, PngColour{colour}, numbers};
           }),
           py::arg("width"), py::arg("height"), py::arg("depth"), py::arg("colour"),
           py::arg("numbers"))
      .def_property_readonly("valid", &PngHeader::valid,
                             "Whether there may be such an image, and the core decodes it.")
      .def_property_readonly("channels", &PngHeader::channels,
                             "Bytes of a pixel of the result: 1 for grey, else 3; or those of its "
                             "numbers.")
      .def("inflated_bytes", &PngHeader::inflated_bytes, py::arg("rows"),
           "Return the inflated bytes of the first rows.")
      .def("pixels", &png_pixels_python, py::arg("inflated"), py::arg("palette"), py::arg("out"),
           "Unfilter inflated rows into out, uint8, (rows, width, channels). Returns (code, "
           "detail, offset).");
  m.def("probe", &probe_python, py::arg("data"),
        "Return (encoding, width, height, components, sampling, progressive, orientation, code, "
        "detail, offset).");
  m.def("is_plain_jpeg", &is_plain_jpeg, py::arg("data"),
        "Return whether Pillow, too, decodes a JPEG with this header, and an end marker follows.");
  m.def(
      "count_scans", [](ByteSpan data) { return outline(data).scans; }, py::arg("data"),
      "Return the number of a JPEG's scans, without those of a thumbnail in a segment.");
  m.def("jpeg_segments", &jpeg_segments, py::arg("data"),
        "Return (marker, begin, end) of a JPEG's segments before its first scan.");
  m.def("build_seek_points", &build_seek_points_python, py::arg("data"), py::arg("stride"),
        "Return (packed table, code, detail, offset) of each JPEG.");
  m.def("check_seek_points", &check_seek_points, py::arg("table"), py::arg("data"),
        py::call_guard<Released>(),
        "Return (code, detail, offset) of comparing a table, with its checksums, with its JPEG.");

  bind_augment(m);
  bind_extents(m);
  bind_plan(m);
  bind_program(m);
  bind_records(m);
  bind_targets(m);
  bind_job(m);
  bind_outlines(m);
  // Runs after fastdata's other exit functions, since this one is registered first.
  Released::watch_forks();
  py::module_::import("atexit").attr("register")(py::cpp_function(&Released::forbid_others));
}

// One translation unit: most of compiling these is pybind11's headers and templates.
#include "python/bindings_augment.cpp"
#include "python/bindings_extents.cpp"
#include "python/bindings_job.cpp"
#include "python/bindings_plan.cpp"
#include "python/bindings_program.cpp"
#include "python/bindings_records.cpp"  // of extents
#include "python/bindings_targets.cpp"
#include "python/bindings_outlines.cpp"  // of jobs
