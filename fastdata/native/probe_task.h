// Finding the sizes and encodings of files that no index describes, from their headers.
#pragma once

#include "io/extents.h"
#include "task.h"

namespace fastdata {

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
