// Files, and the records of an index; included after bindings_extents.cpp.
#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "io/crc32c.h"
#include "io/record_table.h"
#include "python/bindings_extents.h"
#include "python/released.h"

namespace fastdata {
namespace {

int64_t checked(int64_t value, int64_t least, const char* name) {
  if (value < least || value > INT64_MAX / 128)
    throw py::value_error(std::string(name) + " is " + std::to_string(value));
  return value;
}

std::shared_ptr<Files> make_files(const py::sequence& files, const py::object& sizes, bool grows) {
  std::vector<std::string> paths;
  for (const auto& file : files) paths.push_back(to_path(file));
  std::vector<int64_t> known(paths.size(), -1);
  if (!sizes.is_none()) known = sizes.cast<std::vector<int64_t>>();
  if (known.size() != paths.size()) throw py::value_error("sizes must have one entry a file");
  return std::make_shared<Files>(std::move(paths), std::move(known), grows);
}

std::shared_ptr<OpenFile> opened(Files& files, size_t number) {
  if (number >= files.count()) throw py::index_error("file " + std::to_string(number));
  std::shared_ptr<OpenFile> file;
  int error_number = 0;
  Status status;
  {
    const Released release;
    status = files.open(number, file, error_number);
  }
  if (!status.ok()) raise_unreadable(status, error_number, files.path(number));
  return file;
}

py::bytes read_file(Files& files, size_t number, int64_t offset, int64_t length) {
  if (offset < 0 || length < 0) throw py::value_error("offset and length are not below zero");
  const std::shared_ptr<OpenFile> file = opened(files, number);
  while (true) {
    auto data = py::reinterpret_steal<py::bytes>(PyBytes_FromStringAndSize(nullptr, length));
    if (!data) throw py::error_already_set();
    auto* out = reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(data.ptr()));
    int error_number = 0;
    Status status;
    {
      const Released release;
      status = file->read(offset, static_cast<size_t>(length), out, error_number);
    }
    if (status.ok()) return data;
    const int64_t rest = std::max<int64_t>(file->current_stamp().size - offset, 0);
    if (status.code != Code::cut_short || rest >= length)
      raise_unreadable(status, error_number, files.path(number));
    length = rest;
  }
}

std::unique_ptr<RecordTable> open_records(const std::shared_ptr<Files>& index, int64_t records_at,
                                          int64_t rows, int64_t heap_size,
                                          const std::shared_ptr<Files>& files,
                                          const py::object& root, int64_t classes, bool upright,
                                          uint32_t seed) {
  if (index->count() != 1) throw py::value_error("an index is one file");
  IndexedDataset dataset{files, root.is_none() ? std::string() : to_path(root),
                         checked(classes, 0, "classes"), upright, seed};
  return std::make_unique<RecordTable>(
      std::move(dataset), index, checked(records_at, 0, "records_at"), checked(rows, 0, "rows"),
      checked(heap_size, 0, "heap_size"));
}

std::unique_ptr<BoundExtents> gather_records(const RecordTable& table, const py::object& indices) {
  const std::vector<int64_t> rows = rows_of(indices, table.rows());
  auto extents = std::make_unique<BoundExtents>(rows.size());
  int error_number = 0;
  Status status;
  {
    const Released release;
    status = table.gather(rows, *extents, error_number);
  }
  if (!status.ok()) raise_unreadable(status, error_number, table.path());
  return extents;
}

std::unique_ptr<BoundRows> make_rows(const py::object& table, const py::object& indices,
                                     const py::object& numbers, const py::object& occurrences,
                                     int64_t max_pixels) {
  auto lookup = std::make_shared<RowLookup>();
  lookup->table = &py::cast<const RecordTable&>(table);
  lookup->rows = rows_of(indices, lookup->table->rows());
  lookup->numbers = int64s(numbers, "numbers");
  if (!occurrences.is_none()) lookup->occurrences = int64s(occurrences, "occurrences");
  const size_t count = lookup->rows.size(), with_occurrences = lookup->occurrences.size();
  if (lookup->numbers.size() != count || (with_occurrences && with_occurrences != count))
    throw py::type_error("numbers and occurrences must be one a row");
  lookup->max_pixels = max_pixels;
  auto extents = std::make_unique<BoundExtents>(0);
  lookup->extents = extents.get();
  return std::make_unique<BoundRows>(
      BoundRows{std::move(lookup), table, py::cast(std::move(extents))});
}

/// Returns the number of records in some bytes.
size_t count_records(ByteSpan records) {
  if (records.size % sizeof(Record) != 0) throw py::value_error("records of 64 bytes are expected");
  return records.size / sizeof(Record);
}

Record record_at(ByteSpan records, size_t i) {
  Record record;
  std::memcpy(&record, records.data + i * sizeof record, sizeof record);
  return record;
}

size_t sound_records(ByteSpan bytes, int64_t first, uint32_t seed) {
  const size_t count = count_records(bytes);
  const Released release;
  size_t i = 0;
  while (i < count && is_sound(record_at(bytes, i), first + static_cast<int64_t>(i), seed)) i++;
  return i;
}

/// Values one after the other, and the offset of each.
struct Values {
  Values(const std::pair<py::object, py::object>& arguments, std::vector<View>& views) {
    views.emplace_back(arguments.first);
    data = views.back().bytes();
    views.emplace_back(arguments.second);
    if (!views.back().is_integers(8, 1)) throw py::type_error("starts must be int64");
    starts = static_cast<const int64_t*>(views.back()->buf);
    count = static_cast<size_t>(views.back()->shape[0]);
  }

  void append(size_t i, size_t size, std::vector<uint8_t>& to) const {
    const int64_t start = starts[i];
    if (start < 0 || static_cast<size_t>(start) > data.size ||
        size > data.size - static_cast<size_t>(start))
      throw std::invalid_argument("a value lies outside its buffer");
    to.insert(to.end(), data.data + start, data.data + start + size);
  }

  ByteSpan data;
  const int64_t* starts;
  size_t count;
};

py::bytes seal_records(const py::object& records, int64_t first, int64_t heap_at,
                       const std::pair<py::object, py::object>& keys,
                       const std::pair<py::object, py::object>& paths,
                       const std::pair<py::object, py::object>& tables, uint32_t seed) {
  const View view(records, /*writable=*/true);
  const size_t count = count_records(view.bytes());
  std::vector<View> views;
  views.reserve(6);
  const Values key(keys, views), path(paths, views), table(tables, views);
  for (const Values* values : {&key, &path, &table})
    if (values->count < count) throw py::value_error("starts must have one entry a record");
  std::vector<uint8_t> heap;
  {
    const Released release;
    auto* at = static_cast<uint8_t*>(view->buf);
    for (size_t i = 0; i < count; i++, at += sizeof(Record)) {
      const int64_t row = first + static_cast<int64_t>(i);
      Record record;
      std::memcpy(&record, at, sizeof record);
      const size_t begin = heap.size();
      record.heap_at = heap_at + static_cast<int64_t>(begin);
      key.append(i, record.key_size, heap);
      path.append(i, record.path_size, heap);
      record.names_crc = crc32c({heap.data() + begin, heap.size() - begin});
      if (record.table_size) {
        const size_t table_at = heap.size();
        table.append(i, record.table_size, heap);
        const uint32_t crc = table_crc({heap.data() + table_at, record.table_size}, row, seed);
        const auto* bytes = reinterpret_cast<const uint8_t*>(&crc);
        heap.insert(heap.end(), bytes, bytes + sizeof crc);
      }
      record.crc = record_crc(record, row, seed);
      std::memcpy(at, &record, sizeof record);
    }
  }
  return as_bytes(heap);
}

std::tuple<size_t, py::bytes, py::bytes, py::bytes> split_heap(ByteSpan all, ByteSpan bytes,
                                                               int64_t first, bool with_tables,
                                                               uint32_t seed) {
  const size_t count = count_records(all);
  std::vector<uint8_t> keys, paths, tables;
  size_t i = 0;
  {
    const Released release;
    const int64_t begin = count ? record_at(all, 0).heap_at : 0;
    for (size_t at = 0; i < count; i++) {
      const Record record = record_at(all, i);
      const auto offset = static_cast<uint64_t>(record.heap_at) - static_cast<uint64_t>(begin);
      if (offset != at || heap_size(record) > bytes.size - at) break;
      const uint8_t* key = bytes.data + at;
      const uint8_t* path = key + record.key_size;
      const uint8_t* table = path + record.path_size;
      if (crc32c({key, names_size(record)}) != record.names_crc) break;
      if (with_tables && record.table_size) {
        if (!is_table_sound({table, record.table_size}, first + static_cast<int64_t>(i), seed))
          break;
        tables.insert(tables.end(), table, table + record.table_size);
      }
      keys.insert(keys.end(), key, path);
      paths.insert(paths.end(), path, table);
      at += heap_size(record);
    }
  }
  return {i, as_bytes(keys), as_bytes(paths), as_bytes(tables)};
}

}  // namespace

void bind_records(py::module_& m) {
  py::class_<Files, std::shared_ptr<Files>>(
      m, "Files",
      R"(Files by number, opened when they are read; the process keeps open the last ones.

sizes: -1 for any. All methods raise OSError if a file cannot be read, and ValueError if it is
another one than before, or than sizes say; with grows, size and time may differ.)")
      .def(py::init(&make_files), py::arg("paths"), py::arg("sizes") = py::none(), py::kw_only(),
           py::arg("grows") = false)
      .def("read", &read_file, py::arg("number"), py::arg("offset"), py::arg("length"),
           "Return bytes of a file; fewer at its end.")
      .def(
          "size", [](Files& files, size_t number) { return opened(files, number)->size(); },
          py::arg("number"), "Return a file's size in bytes when it was opened.")
      .def(
          "is_unchanged",
          [](Files& files, size_t number) {
            const auto file = opened(files, number);
            return file->current_stamp() == file->stamp();
          },
          py::arg("number"), "Return whether a file is as it was when it was opened.");
  m.def("close_files", &close_files,
        "Close half of the files that Files keep open; return whether there were any.");
  py::class_<RecordTable>(m, "RecordTable",
                          "Records of an index; see fastdata.storage.index.Index.locate.")
      .def(py::init(&open_records), py::arg("index"), py::arg("records_at"), py::arg("rows"),
           py::arg("heap_size"), py::arg("files"), py::arg("root"),
           py::arg("classes") = int64_t{1} << 31, py::arg("upright") = false, py::arg("seed") = 0)
      .def("learn", &RecordTable::learn, py::arg("learnt"),
           "Take learnt seek points from a file from now on.")
      .def("gather", &gather_records, py::arg("indices"),
           "Return rows' extents; see fastdata.storage.index.ExtentTable.gather.");
  py::class_<BoundRows>(m, "Rows",
                        R"(Rows of an index, which a DecodeJob's threads look up and draw cuts for.

numbers, occurrences: parts of the samples' keys (fastdata.plan.draws).)")
      .def(py::init(&make_rows), py::arg("table"), py::arg("indices"), py::arg("numbers"),
           py::arg("occurrences") = py::none(), py::arg("max_pixels") = 0)
      .def("__len__", &BoundRows::size)
      .def_property_readonly(
          "extents",
          [](const BoundRows& rows) -> const BoundExtents& {
            return py::cast<const BoundExtents&>(rows.extents);
          },
          "The rows' extents, once their job is done.");
  m.def("sound_records", &sound_records, py::arg("records"), py::arg("first"), py::arg("seed") = 0,
        "Return the number of sound records before the first damaged one, from row first on.");
  m.def("seal_records", &seal_records, py::arg("records"), py::arg("first"), py::arg("heap_at"),
        py::arg("keys"), py::arg("paths"), py::arg("tables"), py::arg("seed") = 0,
        R"(Add checksums and places in the heap to records, in place; return their part of the heap.

keys, paths, tables: (values one after the other; the offset of each, int64). seed: CRC-32C of the
packing's generation, with which checksums begin.)");
  m.def("split_heap", &split_heap, py::arg("records"), py::arg("heap"), py::arg("first"),
        py::arg("with_tables"), py::arg("seed") = 0,
        "Return (rows before the first damaged one; keys, paths and seek tables of all rows).");
}

}  // namespace fastdata
