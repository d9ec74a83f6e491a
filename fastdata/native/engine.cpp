#include "engine.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace fastdata {

namespace {

/// As top, py-spy and debuggers show it; at most 15 characters.
void name_thread(std::thread& thread, const char* name) {
#ifdef __linux__
  pthread_setname_np(thread.native_handle(), name);
#else
  (void)thread, (void)name;
#endif
}

}  // namespace

struct Batch::State {
  std::shared_ptr<Task> task;
  std::vector<Status> statuses;
  size_t steps = 0;             // the samples, and the preparation if there is one
  std::atomic<size_t> next{0};  // the first sample that no thread has taken
  std::atomic<size_t> finished{0};
  std::atomic<bool> cancelled{false};
  pid_t owner = getpid();
  std::mutex mutex;
  std::condition_variable all_finished;

  bool prepares() const { return steps > statuses.size(); }
  bool done() const { return finished.load(std::memory_order_acquire) == steps; }

  void finish_step() {
    if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 == steps) {
      const std::lock_guard<std::mutex> lock(mutex);
      all_finished.notify_all();
    }
  }

  /// Takes one sample and works on it; false if none is left.
  bool work() {
    const size_t i = next.fetch_add(1, std::memory_order_relaxed);
    if (i >= statuses.size()) return false;
    statuses[i] = cancelled.load(std::memory_order_relaxed)
                      ? Status{Code::cancelled, "the batch was cancelled"}
                      : task->run(i);
    finish_step();
    return true;
  }

  void prepare() {
    if (!cancelled.load(std::memory_order_relaxed)) task->prepare();
    finish_step();
  }
};

Batch::Batch(std::shared_ptr<Task> task) : state_(std::make_shared<State>()) {
  const size_t count = task->size();
  state_->statuses.resize(count);
  state_->steps = count + (count > 0 && task->prepares());
  state_->task = std::move(task);
}

Batch::~Batch() {
  // The task points to memory that may go away with this object's owner.
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

void Batch::cancel() {
  state_->cancelled = true;
  if (state_->owner != getpid()) return;  // its mutex may be in any state
  // Take the rest from the threads, which may be busy with other batches for long.
  while (state_->work()) {
  }
}

const std::vector<Status>& Batch::statuses() const { return state_->statuses; }

/// The threads and their queue. Belongs to the process that made it.
struct Pool {
  pid_t owner = getpid();
  std::mutex mutex;
  std::condition_variable work_waiting;
  std::deque<std::shared_ptr<Batch::State>> queue;
  std::deque<std::shared_ptr<Batch::State>> unprepared;
  std::atomic<size_t> unprepared_count{0};  // to be read without the lock
  bool stopping = false;
  std::vector<std::thread> threads;

  explicit Pool(int count) {
    try {
      for (int i = 0; i < count; i++) threads.emplace_back([this] { run(); });
    } catch (const std::system_error& error) {
      const size_t begun = threads.size();
      stop();  // a thread that is dropped before it was joined ends the process
      throw std::runtime_error("the system gave " + std::to_string(begun) + " of " +
                               std::to_string(count) + " decode threads (" + error.what() +
                               "): ask for fewer (num_workers), or raise the limits of "
                               "processes and memory (ulimit, cgroup)");
    }
    for (std::thread& t : threads) name_thread(t, "fastdata-decode");
  }

  ~Pool() { stop(); }

  void stop() {
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
      if (batch->prepares()) {
        unprepared.push_back(batch);
        unprepared_count++;
      }
      queue.push_back(std::move(batch));
    }
    work_waiting.notify_all();
  }

  void run() {
    for (;;) {
      std::shared_ptr<Batch::State> batch;
      bool prepare = false;
      {
        std::unique_lock<std::mutex> lock(mutex);
        work_waiting.wait(lock, [&] { return stopping || !queue.empty() || !unprepared.empty(); });
        prepare = !unprepared.empty();
        if (prepare) {
          batch = unprepared.front();
          unprepared.pop_front();
          unprepared_count--;
        } else if (queue.empty()) {
          return;
        } else {
          batch = queue.front();
        }
      }
      if (prepare) {
        batch->prepare();
        continue;
      }
      bool more = true;
      while (more && unprepared_count.load(std::memory_order_relaxed) == 0) more = batch->work();
      if (more) continue;
      const std::lock_guard<std::mutex> lock(mutex);
      if (!queue.empty() && queue.front() == batch) queue.pop_front();
    }
  }
};

Engine::Engine(int threads) : threads_(threads) {}

Engine::~Engine() {
  // After a fork the parent's pool is a copy without threads, its mutex in any state: it
  // is left alone, for good.
  const Pool* pool = pool_;
  if (pool && pool->owner == getpid()) delete pool;
}

// No lock: a thread that holds it is not there in a process that forks meanwhile. Of threads that
// submit the first batch at once, each may make a pool, and the first one's is taken.
Pool& Engine::pool() {
  Pool* found = pool_;
  while (!found || found->owner != getpid()) {
    auto made = std::make_unique<Pool>(threads_);
    if (pool_.compare_exchange_strong(found, made.get())) found = made.release();
  }
  return *found;
}

std::unique_ptr<Batch> Engine::submit(std::shared_ptr<Task> task) {
  task->share_among(threads_);
  Pool& own = pool();
  auto batch = std::make_unique<Batch>(std::move(task));
  if (!batch->done()) own.add(batch->state_);
  return batch;
}

}  // namespace fastdata
