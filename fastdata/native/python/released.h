// Working without the GIL, also while the interpreter ends.
#pragma once

#include <Python.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace fastdata {

/// The GIL is released while this lives.
///
/// A daemon thread that takes the GIL back while the interpreter is finalised is ended by Python
/// (before 3.14), by an exception of sorts that C++ cannot let through its destructors: the whole
/// process aborts. So once Python's atexit functions have called forbid_others(), every thread
/// but that one sleeps here for the short rest of its life.
class Released {
 public:
  Released() {
    inside_.fetch_add(1);
    state_ = PyEval_SaveThread();
  }
  ~Released() {
    if (ending_.load() && std::this_thread::get_id() != survivor_) {
      inside_.fetch_sub(1);
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
    PyEval_RestoreThread(state_);
    inside_.fetch_sub(1);
  }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

  /// Call it at the interpreter's end, with the GIL, from the thread that ends it.
  static void forbid_others() {
    survivor_ = std::this_thread::get_id();
    ending_ = true;
    // Threads that wait for the GIL already get it, and release it soon.
    PyThreadState* state = PyEval_SaveThread();
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (inside_.load() > 0 && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    PyEval_RestoreThread(state);
  }

  /// A forked child has none of the other threads.
  static void watch_forks() {
    pthread_atfork(nullptr, nullptr, [] { inside_ = 0; });
  }

 private:
  PyThreadState* state_;
  inline static std::atomic<int> inside_{0};
  inline static std::atomic<bool> ending_{false};
  inline static std::thread::id survivor_;
};

}  // namespace fastdata
