// A thread pool that all CPU streams share, and functions that divide an operation into parts. Each stream has its own limit of
// threads.
//
// The parts and the order of sums depend on sizes only, so results don't depend on the number of threads.

#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace puffer {

// Maximum number of threads, including this one, for the operation that this thread runs.
inline thread_local int width_here = 1;

// A pool of helper threads. Each call of `run` is a batch of parts; batches of several callers run concurrently. The caller works on
// its batch, too, so a batch ends even without helpers.
class Pool {
 public:
  static Pool& shared() {
    static Pool* pool = new Pool();  // never destroyed: workers may outlive static destructors
    return *pool;
  }

  // Call work(part) for part = 0 .. parts - 1 on at most `width` threads, including the caller's. After an exception no further part
  // starts, and the exception is rethrown in the caller.
  void run(int parts, int width, const std::function<void(int)>& work) {
    int helpers = std::min(parts, width) - 1;
    if (helpers < 1) {
      for (int part = 0; part < parts; ++part) work(part);
      return;
    }
    Batch batch(work, parts, helpers);
    bool all = open(batch);
    if (all) wake_.notify_all();
    for (int i = 0; !all && i < helpers; ++i) wake_.notify_one();
    batch.drain();
    close(batch);
    if (batch.error) std::rethrow_exception(batch.error);
  }

 private:
  struct Batch {
    const std::function<void(int)>& work;
    const int parts, helpers;
    std::atomic<int> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;  // written by the thread that set `failed`
    int places, inside = 0;    // helpers that may still join, helpers at work; guarded by the pool's mutex
    std::condition_variable left;

    Batch(const std::function<void(int)>& work, int parts, int helpers)
        : work(work), parts(parts), helpers(helpers), places(helpers) {}

    void drain() {  // computes parts until none is left
      try {
        for (int part; !failed && (part = next++) < parts;) work(part);
      } catch (...) {
        if (!failed.exchange(true)) error = std::current_exception();
      }
    }
  };

  bool open(Batch& batch) {  // returns true if the batch needs every worker
    std::lock_guard<std::mutex> lock(mutex_);
    wanted_ += batch.helpers;
    try {
      for (; workers_ < wanted_; ++workers_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {  // no more threads are available, so there are fewer helpers
    }
    open_.push_back(&batch);
    return batch.helpers >= workers_;
  }

  void close(Batch& batch) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (batch.places > 0) open_.erase(std::find(open_.begin(), open_.end(), &batch));
    batch.left.wait(lock, [&batch] { return batch.inside == 0; });
    wanted_ -= batch.helpers;
  }

  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return !open_.empty(); });
      Batch& batch = *open_.front();
      ++batch.inside;
      if (--batch.places == 0) open_.erase(open_.begin());
      lock.unlock();
      batch.drain();
      lock.lock();
      if (--batch.inside == 0) batch.left.notify_one();  // under the lock, since the batch is destroyed right after
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Batch*> open_;       // batches that still need helpers, oldest first
  int workers_ = 0, wanted_ = 0;  // existing threads; helpers that all open batches may use
};

// Call work(part) for part = 0 .. parts - 1 on the threads of the calling operation.
inline void run_parts(int parts, const std::function<void(int)>& work) { Pool::shared().run(parts, width_here, work); }

// Split rows [0, n) of T steps each into parts, and call work(first row, last row + 1) for each part. There are about 16 parts, so
// that a busy core delays the operation little. A part has at least 512 steps, since waking a thread takes longer than fewer steps.
// Parts start at multiples of `multiple`.
inline void over_rows(int n, int T, const std::function<void(int, int)>& work, int multiple = 1) {
  int rows = std::max({1, n / 16, 512 / std::max(1, T)});
  rows = (rows + multiple - 1) / multiple * multiple;
  int parts = (n + rows - 1) / rows;
  run_parts(parts, [&](int part) { work(part * rows, std::min(n, (part + 1) * rows)); });
}

}  // namespace puffer
