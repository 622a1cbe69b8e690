// A small pool of threads, and how an operation's rows are split among them.
//
// What a part is and in which order sums are taken depends on sizes alone, so results don't depend on the number of
// threads.

#pragma once

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace puffer {

// Runs `work(part)` for part = 0 .. parts - 1, the caller taking its share. One batch at a time.
class Pool {
 public:
  static Pool& shared() {
    static Pool* pool = new Pool();  // never destroyed: workers may outlive static destructors
    return *pool;
  }

  void resize(int threads) {
    std::lock_guard<std::mutex> use(use_);
    threads_ = std::max(1, threads);
    while (static_cast<int>(workers_.size()) < threads_ - 1) {
      workers_.emplace_back([this] { loop(); });
      workers_.back().detach();
    }
  }

  int threads() const { return threads_; }

  void run(int parts, const std::function<void(int)>& work) {
    if (parts == 1 || threads_ == 1) {
      for (int part = 0; part < parts; ++part) work(part);
      return;
    }
    std::lock_guard<std::mutex> use(use_);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      work_ = &work;
      parts_ = parts;
      next_ = 0;
      unfinished_ = parts;
    }
    wake_.notify_all();
    std::unique_lock<std::mutex> lock(mutex_);
    drain(lock);
    done_.wait(lock, [this] { return unfinished_ == 0; });
    work_ = nullptr;
  }

 private:
  void loop() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return work_ != nullptr && next_ < parts_; });
      drain(lock);
    }
  }

  void drain(std::unique_lock<std::mutex>& lock) {  // takes parts until none is left
    while (work_ != nullptr && next_ < parts_) {
      int part = next_++;
      auto* work = work_;
      lock.unlock();
      (*work)(part);
      lock.lock();
      if (--unfinished_ == 0) done_.notify_all();
    }
  }

  std::mutex use_, mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> workers_;
  const std::function<void(int)>* work_ = nullptr;
  int threads_ = 1, parts_ = 0, next_ = 0, unfinished_ = 0;
};

// Splits rows [0, n) of T steps each into parts and calls work(first row, last row + 1). About 16 parts, so that a busy
// core costs little, but none with less than 512 steps: waking a thread takes longer than those. Parts start at
// multiples of `multiple`.
inline void over_rows(int n, int T, const std::function<void(int, int)>& work, int multiple = 1) {
  int rows = std::max({1, n / 16, 512 / std::max(1, T)});
  rows = (rows + multiple - 1) / multiple * multiple;
  int parts = (n + rows - 1) / rows;
  Pool::shared().run(parts, [&](int part) { work(part * rows, std::min(n, (part + 1) * rows)); });
}

}  // namespace puffer
