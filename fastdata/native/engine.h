// The batch engine: a pool of threads that work on the samples of batches.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "task.h"

namespace fastdata {

struct Pool;

/// A batch, from submit to its last sample. The caller keeps alive what the task points
/// to until wait() has returned, or cancel() and then wait().
class Batch {
 public:
  explicit Batch(std::shared_ptr<Task> task);
  ~Batch();

  /// Returns when every sample is done.
  void wait();
  /// The same, but for at most so many seconds; true if the batch is done.
  bool wait_for(double seconds);
  bool done() const;

  /// Samples not yet begun get Code::cancelled, at once: wait() then waits for those under
  /// way, not for batches that were submitted before this one.
  void cancel();

  /// One a step, in order; valid once done.
  const std::vector<Status>& statuses() const;

 private:
  friend class Engine;
  friend struct Pool;
  struct State;
  std::shared_ptr<State> state_;
};

/// Batches are served in the order of submit; a thread with nothing left to do in one
/// begins the next. A process that was forked gets new threads with its first batch (the
/// parent's are not there); a batch that was under way when it forked is lost to it.
class Engine {
 public:
  explicit Engine(int threads);
  ~Engine();  // cancels what has not begun, waits for the rest
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int threads() const { return threads_; }
  /// For any number of threads.
  std::unique_ptr<Batch> submit(std::shared_ptr<Task> task);

 private:
  Pool& pool();

  int threads_;
  std::atomic<Pool*> pool_{nullptr};
};

}  // namespace fastdata
