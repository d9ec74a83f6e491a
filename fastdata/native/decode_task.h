// A batch of images to decode, from memory or from where they lie on disk.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "io/extents.h"
#include "sample.h"
#include "task.h"

namespace fastdata {

class DecodeTask final : public Task {
 public:
  /// One a sample. With `extents`, they have no bytes yet; seek points that they have
  /// count more than the extents'.
  std::vector<Sample> samples;
  SampleOptions options;
  /// Further views of the same images: of these tasks only samples and options are used.
  std::vector<std::shared_ptr<const DecodeTask>> views;
  const Extents* extents = nullptr;
  bool check = true;          // checksums
  std::vector<uint8_t> skip;  // a byte a sample, or none: samples to leave alone
  int stride = 0;             // of seek points built for JPEGs that have none; 0: not built
  struct Built {
    std::vector<uint8_t> table;  // empty: none
    FileStamp stamp;             // of the extent's file
  };
  std::vector<Built> built;  // one a sample if stride, most of them empty

  size_t size() const override { return samples.size(); }
  Status run(size_t i) override;
  bool prepares() const override { return extents && extents->files; }
  void prepare() override;

  /// Of all threads together.
  double read_seconds() const { return 1e-9 * static_cast<double>(read_.load()); }
  double decode_seconds() const { return 1e-9 * static_cast<double>(decode_.load()); }

 private:
  Status read(size_t i, Sample& sample);
  Status decode(size_t i, Sample& sample);

  std::atomic<int64_t> read_{0}, decode_{0};  // nanoseconds
};

}  // namespace fastdata
