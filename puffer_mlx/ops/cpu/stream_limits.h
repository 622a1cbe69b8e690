// Limits of each CPU stream: threads per operation and operations in flight. Several streams share the machine.

#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace puffer {

// Limits of one CPU stream.
class StreamLimits {
 public:
  std::atomic<int> num_threads{0};  // per operation, including the stream's thread; 0 for the default

  int max_in_flight() const { return max_in_flight_; }

  // Set the maximum number of in-flight operations, 0 for no limit.
  void set_max_in_flight(int operations) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      max_in_flight_ = operations;
    }
    left_.notify_all();
  }

  // Wait until the stream may start another operation. Returns true if the operation was counted as in flight.
  bool enter() {
    if (max_in_flight_ == 0) return false;
    std::unique_lock<std::mutex> lock(mutex_);
    left_.wait(lock, [this] { return max_in_flight_ == 0 || in_flight_ < max_in_flight_; });
    ++in_flight_;
    return true;
  }

  // Guard whose destructor marks the end of an operation.
  class Leave {
   public:
    Leave(StreamLimits& limits, bool counted) : limits_(counted ? &limits : nullptr) {}
    Leave(const Leave&) = delete;
    Leave& operator=(const Leave&) = delete;

    ~Leave() {
      if (limits_ == nullptr) return;
      {
        std::lock_guard<std::mutex> lock(limits_->mutex_);
        --limits_->in_flight_;
      }
      limits_->left_.notify_all();
    }

   private:
    StreamLimits* limits_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable left_;
  std::atomic<int> max_in_flight_{0};
  int in_flight_ = 0;
};

// Limits of all streams by index. MLX never reuses an index.
class StreamLimitTable {
 public:
  static StreamLimitTable& all() {
    // Never destroyed, because streams may outlive static destructors.
    static StreamLimitTable* table = new StreamLimitTable();
    return *table;
  }

  StreamLimits& of(int stream) {  // the reference stays valid
    {
      std::shared_lock<std::shared_mutex> lock(mutex_);
      auto found = limits_.find(stream);
      if (found != limits_.end()) return found->second;
    }
    std::lock_guard<std::shared_mutex> lock(mutex_);
    return limits_[stream];
  }

  int default_num_threads() const { return default_num_threads_; }
  void set_default_num_threads(int threads) { default_num_threads_ = std::max(1, threads); }

 private:
  std::shared_mutex mutex_;
  std::unordered_map<int, StreamLimits> limits_;
  std::atomic<int> default_num_threads_{1};
};

}  // namespace puffer
