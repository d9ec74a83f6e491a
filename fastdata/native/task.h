// What the engine's threads do: samples that know nothing of each other.
#pragma once

#include <cstddef>

#include "status.h"

namespace fastdata {

/// The work of a batch. Its functions are called by several threads at once, never twice
/// for the same sample, and throw nothing.
class Task {
 public:
  virtual ~Task() = default;
  virtual size_t size() const = 0;
  virtual Status run(size_t sample) = 0;

  /// What is worth doing early, while samples of earlier batches are still waiting: called
  /// once, as soon as a thread has finished a sample, if there is something to prepare.
  virtual bool prepares() const { return false; }
  virtual void prepare() {}
};

}  // namespace fastdata
