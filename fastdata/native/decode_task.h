// A batch of images to decode, from memory or from where they lie on disk.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "io/extents.h"
#include "io/record_table.h"
#include "partial.h"
#include "sample.h"
#include "task.h"

namespace fastdata {

/// Rows of an index that the decoding threads look up, to draw their geometry by their sizes.
struct RowLookup {
  const RecordTable* table = nullptr;
  std::vector<int64_t> rows;
  // What the keys of the draws are made of (fastdata/plan/draws.py); no occurrences: all are 0.
  std::vector<int64_t> numbers, occurrences;
  int64_t max_pixels = 0;  // larger images fail with `too_large`; 0: no limit
  Extents* extents = nullptr;
};

class DecodeTask final : public Task {
 public:
  /// One a sample. With `extents`, they have no bytes yet; seek points that they have
  /// count more than the extents'.
  std::vector<Sample> samples;
  SampleOptions options;
  /// Further views of the same images: of these tasks only samples and options are used.
  std::vector<std::shared_ptr<DecodeTask>> views;
  /// If set, samples, extents and all cuts are made from it. Samples that are too small for their
  /// cut fail with `bad_region`, those without a size with `other_size`.
  std::shared_ptr<const RowLookup> lookup;
  const StepProgram* program = nullptr;  // which draws this view's cuts, with `lookup`
  uint64_t key = 0;                      // of the view, in the epoch
  std::vector<Output> outputs;           // of the samples, with `lookup`
  const Extents* extents = nullptr;
  bool check = true;          // checksums
  std::vector<uint8_t> skip;  // a byte a sample, or none: samples to leave alone
  int stride = 0;             // of seek points built for JPEGs that have none; 0: not built
  struct Built {
    std::vector<uint8_t> table;  // empty: none
    FileStamp stamp;             // of the extent's file
  };
  std::vector<Built> built;  // one a sample if stride, most of them empty

  size_t count() const { return lookup ? lookup->rows.size() : samples.size(); }
  size_t size() const override { return count() * parts_; }
  void share_among(int threads) override;
  size_t parts() const override { return parts_; }
  bool prepares() const override { return lookup || (extents && !extents->tables.empty()); }
  void prepare() override;

  /// Of all threads together.
  double read_seconds() const { return 1e-9 * static_cast<double>(read_.load()); }
  double decode_seconds() const { return 1e-9 * static_cast<double>(decode_.load()); }
  /// Of samples and their seek points, from files.
  uint64_t bytes_read() const { return bytes_read_.load(); }

 private:
  /// What is read of a sample that is not read whole.
  struct Parts {
    SeekTable table;
    McuBox mcus;
    std::vector<ByteRange> bytes;
  };

  /// A sample, or some rows of its output.
  struct Work {
    Sample sample;
    Box box;  // of the image: what it may need
  };
  Status work(size_t step) override;
  void look_up();
  void make_samples();
  Status draw(size_t i);
  bool may_divide(size_t i) const;
  bool builds(size_t i) const;
  bool is_checked(size_t i, const Sample& sample) const;
  Work work_of(size_t i, size_t part) const;
  Status read(size_t i, Work& work);
  bool plan_parts(size_t i, const Box& box, ByteSpan seek_points, Parts& parts) const;
  Status read_parts(size_t i, Work& work, bool& read);
  Status decode(size_t i, Work& work);

  std::once_flag looked_up_;
  bool no_memory_ = false;                    // in `look_up`
  std::vector<Status> refused_;               // by `look_up`, one a sample
  size_t parts_ = 1;                          // of each sample
  std::atomic<int64_t> read_{0}, decode_{0};  // nanoseconds
  std::atomic<uint64_t> bytes_read_{0};
};

}  // namespace fastdata
