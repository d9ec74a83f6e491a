// Tasks that decode nothing: they read samples for other decoders, or find their sizes.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "io/extents.h"
#include "task.h"

namespace fastdata {

/// One sample's bytes, or nothing.
struct Blob {
  std::unique_ptr<uint8_t[]> data;
  size_t size = 0;
};

/// Reads the samples that are not skipped; compares their checksums if `check`. If `scans`, it also
/// decodes the Huffman codes of baseline JPEGs without seek points, and leaves out damaged ones.
class ReadTask final : public Task {
 public:
  ReadTask(const Extents& extents, std::vector<uint8_t> skip, bool check, bool scans)
      : extents_(extents),
        skip_(std::move(skip)),
        check_(check),
        scans_(scans),
        blobs_(extents.size()) {
    will_need(extents_, skip_);
  }

  size_t size() const override { return extents_.size(); }

  /// When it is done.
  std::vector<Blob>& blobs() { return blobs_; }
  /// Seconds of all threads.
  double seconds() const { return static_cast<double>(nanoseconds_.load()) * 1e-9; }

 private:
  Status work(size_t i) override;

  const Extents& extents_;
  const std::vector<uint8_t> skip_;
  const bool check_, scans_;
  std::vector<Blob> blobs_;
  std::atomic<int64_t> nanoseconds_{0};
};

/// Fills widths, heights and encodings where a width is 0. A sample that is no JPEG for this core
/// is left as it is, and its status says why.
class ProbeTask final : public Task {
 public:
  explicit ProbeTask(Extents& extents) : extents_(extents) {}

  size_t size() const override { return extents_.size(); }

 private:
  Status work(size_t i) override;

  Extents& extents_;
};

}  // namespace fastdata
