#include "python/bindings_extents.h"

#include "python/bindings.h"
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "io/crc32c.h"
#include "partial.h"
#include "python/released.h"

namespace fastdata {
namespace {

/// An array of (width, height) for each path; none for None.
std::optional<View> sizes_of(const py::object& array, size_t count) {
  if (array.is_none()) return {};
  View view(array);
  if (!view.is_integers(sizeof(int32_t), 2) || static_cast<size_t>(view->shape[0]) != count ||
      view->shape[1] != 2)
    throw py::value_error("sizes must be int32, one row (width, height) a path, contiguous");
  return view;
}

std::unique_ptr<BoundExtents> extents_of_paths(const py::sequence& paths,
                                               const py::object& seek_points,
                                               const py::object& sizes,
                                               const py::object& orientations, bool raw) {
  const size_t count = py::len(paths);
  const std::optional<View> size_view = sizes_of(sizes, count);
  const auto* size = size_view ? static_cast<const int32_t*>((*size_view)->buf) : nullptr;
  const std::vector<int8_t> turns = orientations_of(orientations, count);
  if (!seek_points.is_none() && py::len(seek_points) != count)
    throw py::value_error("seek_points must have one entry a path");
  auto extents = std::make_unique<BoundExtents>(count);
  for (size_t i = 0; i < count; i++) {
    extents->set_path(i, to_path(py::object(paths[i])));
    if (!turns.empty()) extents->extents[i].orientation = turns[i];
    if (size) {
      extents->widths[i] = size[2 * i];
      extents->heights[i] = size[2 * i + 1];
      extents->extents[i].check_size = true;
    }
    if (raw) extents->encodings[i] = kRawEncoding;
    if (seek_points.is_none()) continue;
    const py::object table = py::reinterpret_borrow<py::sequence>(seek_points)[i];
    if (table.is_none()) continue;
    extents->views.emplace_back(table);
    extents->extents[i].seek_points = extents->views.back().bytes();
    extents->seekable[i] = extents->extents[i].seek_points.size > 0;
  }
  return extents;
}

/// Returns a read-only array over values `stride` bytes apart; it keeps the extents alive.
template <typename T>
py::array_t<T> array_over(const py::object& extents, const T* first, size_t stride) {
  const auto count = static_cast<py::ssize_t>(py::len(extents));
  py::array_t<T> array({count}, {static_cast<py::ssize_t>(stride)}, first, extents);
  py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return array;
}

/// Returns the getter of a column.
template <typename T>
auto column(std::vector<T> Extents::* member) {
  return [member](const py::object& self) {
    return array_over(self, (py::cast<const BoundExtents&>(self).*member).data(), sizeof(T));
  };
}

/// Returns the getter of a member of each extent.
template <typename T>
auto column(T Extent::* member) {
  return [member](const py::object& self) {
    const std::vector<Extent>& extents = py::cast<const BoundExtents&>(self).extents;
    return array_over(self, extents.empty() ? nullptr : &(extents[0].*member), sizeof(Extent));
  };
}

size_t check_index(const BoundExtents& extents, py::ssize_t i) {
  if (i < 0 || static_cast<size_t>(i) >= extents.size())
    throw py::index_error("sample " + std::to_string(i) + " of " + std::to_string(extents.size()));
  return static_cast<size_t>(i);
}

py::str path_of(const BoundExtents& extents, py::ssize_t i) {
  const char* path = extents.path(check_index(extents, i));
  return py::reinterpret_steal<py::str>(PyUnicode_DecodeFSDefault(path));
}

/// Copies a column, so that it does not change while threads use it.
std::vector<int64_t> int64s(const py::object& array, const char* name) {
  const View view(array);
  if (!view.is_integers(8, 1))
    throw py::type_error(std::string(name) + " must be int64, 1-D, contiguous");
  const auto* first = static_cast<const int64_t*>(view->buf);
  return {first, first + view->shape[0]};
}

std::vector<int64_t> rows_of(const py::object& indices, int64_t count) {
  std::vector<int64_t> rows = int64s(indices, "indices");
  for (const int64_t row : rows)
    if (row < 0 || row >= count)
      throw py::index_error("sample " + std::to_string(row) + " of a dataset of " +
                            std::to_string(count));
  return rows;
}

std::unique_ptr<BoundExtents> join_extents(size_t count, const py::list& parts,
                                           const py::list& slots) {
  if (parts.size() != slots.size()) throw py::value_error("there must be slots for each part");
  auto extents = std::make_unique<BoundExtents>(count);
  size_t placed = 0;
  for (size_t i = 0; i < parts.size(); i++) {
    const auto& part = py::cast<const BoundExtents&>(parts[i]);
    const std::vector<int64_t> to = rows_of(slots[i], static_cast<int64_t>(count));
    if (to.size() != part.size()) throw py::value_error("there must be a slot for each sample");
    extents->place(part, to);
    placed += to.size();
  }
  if (placed != count) throw py::value_error("there must be a sample for each slot");
  extents->parts = py::tuple(parts);  // what the samples' spans lie in
  return extents;
}

[[noreturn]] void raise_unreadable(Status status, int error_number, const std::string& file) {
  const auto path = py::reinterpret_steal<py::str>(PyUnicode_DecodeFSDefault(file.c_str()));
  if (error_number) {
    errno = error_number;
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path.ptr());
  } else if (status.code == Code::file_unreadable) {
    const py::tuple arguments = py::make_tuple(EINVAL, status.detail, path);
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
  } else {
    PyErr_Format(PyExc_ValueError, "%U: %s (%s)", path.ptr(), status.detail,
                 code_name(status.code));
  }
  throw py::error_already_set();
}

py::bytes read(const BoundExtents& extents, py::ssize_t index, bool check) {
  const size_t i = check_index(extents, index);
  BlobReader& reader = thread_reader();
  ByteSpan blob;
  Status status;
  {
    const Released release;
    status = reader.read(extents, i, check, blob);
  }
  if (status.ok()) {
    py::bytes bytes(reinterpret_cast<const char*>(blob.data), blob.size);
    reader.trim();
    return bytes;
  }
  raise_unreadable(status, reader.error_number(), extents.path(i));
}

void attach(BoundExtents& extents, py::ssize_t index, const py::object& data) {
  Extent& extent = extents.extents[check_index(extents, index)];
  View view(data);
  const ByteSpan bytes = view.bytes();
  if (extent.length >= 0 && bytes.size != static_cast<size_t>(extent.length))
    throw py::value_error("sample " + std::to_string(index) + " has " +
                          std::to_string(extent.length) + " bytes, not " +
                          std::to_string(bytes.size));
  extents.views.push_back(std::move(view));
  extent.memory = bytes;
  extent.rows = {};
  extent.in_memory = true;
}

/// Bytes of a buffer, or an error that names the place in the arguments.
ByteSpan part_of(ByteSpan data, int64_t start, int64_t stop, size_t i) {
  if (start < 0 || stop < start || static_cast<size_t>(stop) > data.size)
    throw py::value_error("range " + std::to_string(i) + " lies outside of its data");
  return {data.data + start, static_cast<size_t>(stop - start)};
}

void attach_parts(BoundExtents& extents, const Row<int64_t>& slots, const py::sequence& data,
                  const Row<int64_t>& starts, const Row<int64_t>& stops, const Row<int64_t>& at) {
  const size_t count = py::len(data);
  for (const auto* each : {&slots, &starts, &stops, &at})
    if (static_cast<size_t>(each->size()) != count)
      throw py::value_error("there must be a value for each range");
  for (size_t i = 0; i < count; i++) {
    Extent& extent = extents.extents[check_index(extents, slots.at(i))];
    View view(py::object(data[i]));
    const ByteSpan bytes = part_of(view.bytes(), starts.at(i), stops.at(i), i);
    const auto length = static_cast<size_t>(std::max<int64_t>(extent.length, 0));
    const auto begin = static_cast<size_t>(std::max<int64_t>(at.at(i), 0));
    if (begin == 0) {
      extent.memory = bytes;
      extent.rows = {};
    } else if (bytes.size == 0 || extent.memory.size > begin || begin > length ||
               bytes.size > length - begin) {
      throw py::value_error("sample " + std::to_string(slots.at(i)) + " has no such rows");
    } else {
      extent.rows = bytes;
    }
    extent.rows_at = begin;
    extent.in_memory = true;
    extents.views.push_back(std::move(view));
  }
}

/// Not compared.
constexpr int64_t kNoChecksum = -1;

std::vector<size_t> wrong_parts(ByteSpan data, const Row<int64_t>& starts,
                                const Row<int64_t>& stops, const Row<int64_t>& checksums) {
  if (stops.size() != starts.size() || checksums.size() != starts.size())
    throw py::value_error("there must be a stop and a checksum for each start");
  const int64_t *start = starts.data(), *stop = stops.data(), *checksum = checksums.data();
  std::vector<size_t> wrong;
  const Released release;
  for (size_t i = 0; i < static_cast<size_t>(starts.size()); i++) {
    const ByteSpan part = part_of(data, start[i], stop[i], i);
    if (checksum[i] != kNoChecksum && crc32c(part) != checksum[i]) wrong.push_back(i);
  }
  return wrong;
}

/// Keeps a buffer of Arrow's; None is empty.
ByteSpan kept(const py::object& buffer, std::vector<View>& views) {
  if (buffer.is_none()) return {};
  views.emplace_back(buffer);
  return views.back().bytes();
}

using ChunkArguments = std::tuple<int64_t, int64_t, bool, py::object, py::object, py::object>;

std::unique_ptr<BoundColumn> make_column(const std::vector<ChunkArguments>& chunks) {
  auto column = std::make_unique<BoundColumn>();
  for (const auto& [count, first, wide, validity, offsets, data] : chunks) {
    BinaryChunk chunk{count, first, wide, {}, {}, {}};
    chunk.validity = kept(validity, column->views);
    chunk.offsets = kept(offsets, column->views);
    chunk.data = kept(data, column->views);
    if (!column->add(chunk)) throw py::value_error("a chunk has fewer values than it says");
  }
  return column;
}

void attach_column(const py::object& self, const py::object& from, const py::object& indices) {
  auto& extents = py::cast<BoundExtents&>(self);
  const auto& column = py::cast<const BoundColumn&>(from);
  const std::vector<int64_t> rows = rows_of(indices, column.size());
  if (rows.size() != extents.size()) throw py::value_error("there must be a row for each sample");
  // what the bytes lie in
  extents.parts = extents.parts ? py::object(py::make_tuple(extents.parts, from)) : from;
  for (size_t i = 0; i < rows.size(); i++) {
    Extent& extent = extents.extents[i];
    ByteSpan value;
    const BinaryColumn::Found found = column.find(rows[i], value);
    if (found == BinaryColumn::Found::null && *extents.path(i)) continue;
    if (found == BinaryColumn::Found::damaged) extent.corrupt = "it lies outside of its table";
    extent.memory = value;
    extent.length = static_cast<int64_t>(value.size);
    // as in an index, an empty value has a place, and a null has none
    extent.offset = found == BinaryColumn::Found::null ? 0 : 1;
    extent.rows = {};
    extent.in_memory = true;
  }
}

py::array_t<int64_t> column_lengths(const BoundColumn& column, const py::object& indices) {
  const std::vector<int64_t> rows = rows_of(indices, column.size());
  py::array_t<int64_t> lengths(static_cast<py::ssize_t>(rows.size()));
  int64_t* out = lengths.mutable_data();
  for (const int64_t row : rows) {
    ByteSpan value;
    const bool null = column.find(row, value) == BinaryColumn::Found::null;
    *out++ = null ? -1 : static_cast<int64_t>(value.size);
  }
  return lengths;
}

constexpr py::ssize_t kFetchColumns = 6;

py::array_t<int64_t> plan_fetches(const BoundExtents& extents, const std::vector<py::ssize_t>& rows,
                                  const py::list& boxes) {
  for (const py::ssize_t row : rows) check_index(extents, row);
  std::vector<View> views;
  for (const auto& each : boxes) {
    views.emplace_back(py::reinterpret_borrow<py::object>(each));
    if (!views.back().is_integers(4, 2) ||
        static_cast<size_t>(views.back()->shape[0]) != rows.size() || views.back()->shape[1] != 4)
      throw py::value_error("boxes must be int32, (N, 4), contiguous");
  }
  py::array_t<int64_t> found({static_cast<py::ssize_t>(rows.size()), kFetchColumns});
  int64_t* out = found.mutable_data();
  const Released release;
  std::vector<Box> needed(views.size());
  for (size_t i = 0; i < rows.size(); i++, out += kFetchColumns) {
    for (size_t v = 0; v < views.size(); v++) {
      const int32_t* box = static_cast<const int32_t*>(views[v]->buf) + 4 * i;
      needed[v] = {box[0], box[1], box[2], box[3]};
    }
    const Fetch fetch = plan_fetch(extents, static_cast<size_t>(rows[i]), needed);
    const int64_t columns[kFetchColumns] = {static_cast<int64_t>(fetch.header),
                                            fetch.header_crc,
                                            static_cast<int64_t>(fetch.rows.bytes.begin),
                                            static_cast<int64_t>(fetch.rows.bytes.end),
                                            fetch.rows.first,
                                            fetch.rows.end};
    std::copy_n(columns, kFetchColumns, out);
  }
  return found;
}

bool are_rows_sound(const BoundExtents& extents, py::ssize_t index, size_t at, int first, int end,
                    ByteSpan bytes) {
  const size_t i = check_index(extents, index);
  const Released release;
  return is_sound(extents, i, {first, end, {at, at + bytes.size}}, bytes);
}

void learn(BoundExtents& extents, const std::shared_ptr<Files>& learnt, const py::object& numbers,
           uint32_t seed) {
  const std::vector<int64_t> rows = int64s(numbers, "rows");
  if (rows.size() != extents.size()) throw py::value_error("rows must have one entry a sample");
  const Released release;
  std::shared_ptr<OpenFile> file;
  int ignored;  // without them, samples are decoded more slowly
  if (!learnt->open(0, file, ignored).ok()) return;
  extents.tables = {{nullptr, nullptr, learnt, seed}};
  for (size_t i = 0; i < rows.size(); i++) {
    find_learnt(*file, rows[i], extents.extents[i]);
    extents.seekable[i] = extents.extents[i].table_size > 0;
  }
}

std::vector<size_t> corrupt_slots(const BoundExtents& extents) {
  std::vector<size_t> found;
  for (size_t i = 0; i < extents.extents.size(); ++i)
    if (extents.extents[i].corrupt) found.push_back(i);
  return found;
}

}  // namespace

void bind_extents(py::module_& m) {
  py::class_<BoundExtents>(m, "Extents",
                           R"(Places and properties of N samples; made from paths of whole files.

sizes: (width, height), int32, (N, 2); 0 where unknown. A JPEG of another size is other_size.
raw: the bytes are RGB pixels of these sizes. Columns are read-only and not copied.)")
      .def(py::init(&extents_of_paths), py::arg("paths"), py::kw_only(),
           py::arg("seek_points") = py::none(), py::arg("sizes") = py::none(),
           py::arg("orientations") = py::none(), py::arg("raw") = false)
      .def_static("join", &join_extents, py::arg("count"), py::arg("parts"), py::arg("slots"),
                  "Join several parts: each part's samples fill its slots, int64, of count ones.")
      .def("__len__", [](const BoundExtents& extents) { return extents.size(); })
      .def_property_readonly("labels", column(&Extents::labels), "(N,); 0 where unknown.")
      .def_property_readonly("widths", column(&Extents::widths), "(N,), pixels; 0 where unknown.")
      .def_property_readonly("heights", column(&Extents::heights), "(N,), pixels; 0 where unknown.")
      .def_property_readonly("encodings", column(&Extents::encodings),
                             "(N,), places in ENCODINGS; -1 where unknown.")
      .def_property_readonly("seekable", column(&Extents::seekable),
                             "(N,), 1 where there are seek points.")
      .def_property_readonly("files", column(&Extent::file),
                             "(N,), numbers of the table's files; -1 for a file of its own.")
      .def_property_readonly("offsets", column(&Extent::offset),
                             "(N,), bytes from the file's beginning.")
      .def_property_readonly("lengths", column(&Extent::length),
                             "(N,), bytes; -1 where unknown, which means the whole file.")
      .def_property_readonly("checksums", column(&Extent::crc), "(N,), CRC-32C; 0 where unknown.")
      .def_property_readonly("orientations", column(&Extent::orientation),
                             "(N,), EXIF orientations; 0: none; -1: as the header says.")
      .def("learn", &learn, py::arg("learnt"), py::arg("rows"), py::arg("seed"),
           "Take samples' seek points from a file (docs/formats/learnt.md), by their rows.")
      .def("attach", &attach, py::arg("index"), py::arg("data"),
           "Set a sample's bytes, which are kept, not copied. Not while a batch reads from it.")
      .def("attach_parts", &attach_parts, py::arg("slots"), py::arg("data"), py::arg("starts"),
           py::arg("stops"), py::arg("at"),
           R"(Set samples' bytes, which are kept, not copied. Not while a batch reads from them.

Of slot slots[i], the bytes from at[i] on are those from starts[i] to stops[i] of data[i], (N,).
A range that begins after byte 0 follows one with the first bytes; others of its bytes are
bad_seek_points.)")
      .def("attach_column", &attach_column, py::arg("column"), py::arg("rows"),
           "Set all samples' bytes to values of a column, (N,); a null leaves the path.")
      .def("plan_fetches", &plan_fetches, py::arg("rows"), py::arg("boxes"),
           R"(Return the ranges to fetch for boxes, (N, 4), of each view of N samples.

(N, 6): size of the header, its CRC-32C, first byte of the rows of MCUs and one past their
last, first segment and one past the last. Zeros: fetch the whole sample.)")
      .def("are_rows_sound", &are_rows_sound, py::arg("index"), py::arg("at"), py::arg("first"),
           py::arg("end"), py::arg("data"),
           "Return whether data, from byte at of a sample on, matches its checksums.")
      .def(
          "is_partial",
          [](const BoundExtents& extents, py::ssize_t index) {
            return extents.extents[check_index(extents, index)].is_partial();
          },
          py::arg("index"), "Return whether only some of a sample's bytes were attached.")
      .def("corrupt_slots", &corrupt_slots,
           "Return the places of samples whose row of the index is damaged or contradictory.")
      .def("path", &path_of, py::arg("index"),
           "Return the path of a sample's file; empty where a corrupt index names none.")
      .def("read", &read, py::arg("index"), py::kw_only(), py::arg("check") = true,
           "Return a sample's bytes. ValueError: they changed, or the index row is corrupt.");

  m.def("wrong_parts", &wrong_parts, py::arg("data"), py::arg("starts"), py::arg("stops"),
        py::arg("checksums"),
        "Return which ranges of data have another CRC-32C, (N,); -1 is not compared.");

  py::class_<BoundColumn>(m, "BinaryColumn",
                          R"(Column of Arrow's binary layout. Its buffers are kept, not copied.

chunks: (length, offset, whether offsets have 64 bits, validity, offsets, data).)")
      .def(py::init(&make_column), py::arg("chunks"))
      .def("__len__", &BoundColumn::size)
      .def("lengths", &column_lengths, py::arg("rows"),
           "Return the bytes of each value, (N,); -1 for a null. IndexError: no such row.");
}

}  // namespace fastdata
