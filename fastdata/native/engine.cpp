#include "engine.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace fastdata {

struct Batch::State {
  std::vector<Sample> samples;
  SampleOptions options;
  std::vector<Status> statuses;
  std::atomic<size_t> next{0};  // the first sample that nobody has taken
  std::atomic<size_t> finished{0};
  std::atomic<bool> cancelled{false};
  pid_t owner = getpid();
  std::mutex mutex;
  std::condition_variable all_finished;

  bool done() const { return finished.load(std::memory_order_acquire) == samples.size(); }

  /// Takes one sample and decodes it; false if none is left.
  bool work() {
    const size_t i = next.fetch_add(1, std::memory_order_relaxed);
    if (i >= samples.size()) return false;
    statuses[i] = cancelled.load(std::memory_order_relaxed)
                      ? Status{Code::cancelled, "the batch was cancelled"}
                      : thread_decoder().run(samples[i], options);
    if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 == samples.size()) {
      const std::lock_guard<std::mutex> lock(mutex);
      all_finished.notify_all();
    }
    return true;
  }
};

Batch::Batch(std::vector<Sample> samples, const SampleOptions& options)
    : state_(std::make_shared<State>()) {
  state_->statuses.resize(samples.size());
  state_->samples = std::move(samples);
  state_->options = options;
}

Batch::~Batch() {
  // The samples point to memory that may go away with this object's owner.
  if (state_->owner != getpid()) return;
  cancel();
  wait();
}

void Batch::wait() {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->all_finished.wait(lock, [&] { return state_->done(); });
}

bool Batch::wait_for(double seconds) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  return state_->all_finished.wait_for(lock, std::chrono::duration<double>(seconds),
                                       [&] { return state_->done(); });
}

bool Batch::done() const { return state_->done(); }

void Batch::cancel() { state_->cancelled = true; }

const std::vector<Status>& Batch::statuses() const { return state_->statuses; }

/// The threads and their queue. Belongs to the process that made it.
struct Pool {
  pid_t owner = getpid();
  std::mutex mutex;
  std::condition_variable work_waiting;
  std::deque<std::shared_ptr<Batch::State>> queue;
  bool stopping = false;
  std::vector<std::thread> threads;

  explicit Pool(int count) {
    for (int i = 0; i < count; i++) threads.emplace_back([this] { run(); });
  }

  ~Pool() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      stopping = true;
      for (const auto& batch : queue) batch->cancelled = true;
    }
    work_waiting.notify_all();
    for (std::thread& t : threads) t.join();
  }

  void add(std::shared_ptr<Batch::State> batch) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      queue.push_back(std::move(batch));
    }
    work_waiting.notify_all();
  }

  void run() {
    for (;;) {
      std::shared_ptr<Batch::State> batch;
      {
        std::unique_lock<std::mutex> lock(mutex);
        work_waiting.wait(lock, [&] { return stopping || !queue.empty(); });
        if (queue.empty()) return;
        batch = queue.front();
      }
      while (batch->work()) {
      }
      const std::lock_guard<std::mutex> lock(mutex);
      if (!queue.empty() && queue.front() == batch) queue.pop_front();
    }
  }
};

Engine::Engine(int threads) : threads_(threads) {}

Engine::~Engine() {
  // After a fork the parent's pool is a copy without threads, its mutex in any state: it
  // is left alone, for good.
  if (pool_ && pool_->owner == getpid()) delete pool_;
}

std::unique_ptr<Batch> Engine::submit(std::vector<Sample> samples, const SampleOptions& options) {
  if (!pool_ || pool_->owner != getpid()) pool_ = new Pool(threads_);
  auto batch = std::make_unique<Batch>(std::move(samples), options);
  if (!batch->done()) pool_->add(batch->state_);
  return batch;
}

}  // namespace fastdata
