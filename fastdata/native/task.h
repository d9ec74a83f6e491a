// Work of the engine's threads: independent samples.
#pragma once

#include <cstddef>
#include <new>

#include "status.h"

namespace fastdata {

/// The work of a batch, in steps: its samples, or some parts of each, one sample's after the
/// other's. Its functions are called by several threads at once, never twice for the same step, and
/// throw nothing.
class Task {
 public:
  virtual ~Task() = default;
  virtual size_t size() const = 0;  // in steps

  /// Works on one step; reports where memory runs out.
  Status run(size_t step) {
    try {
      return work(step);
    } catch (const std::bad_alloc&) {
      return {Code::out_of_memory, "not enough memory for this image"};
    }
  }

  /// Called before the first step: parts samples where there are more threads than samples.
  virtual void share_among(int /*threads*/) {}
  virtual size_t parts() const { return 1; }  // of a sample

  /// Work to do early, while samples of earlier batches still wait: called once, as soon as a
  /// thread has finished a sample, if `prepares`.
  virtual bool prepares() const { return false; }
  virtual void prepare() {}

 private:
  /// Throws std::bad_alloc.
  virtual Status work(size_t step) = 0;
};

}  // namespace fastdata
