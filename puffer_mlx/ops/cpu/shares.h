// What operations may use on each CPU stream, where several streams share one machine.

#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace puffer {

// The share of one CPU stream.
class Share {
 public:
  std::atomic<int> width{0};  // threads of one operation, the stream's own among them; 0: as many as by default

  int depth() const { return depth_; }

  // Operations that may be under way, the rest of a graph waiting to be handed to the stream; 0: as many as MLX lets.
  void set_depth(int operations) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      depth_ = operations;
    }
    left_.notify_all();
  }

  // To be called before an operation is handed to the stream: waits until it may be. Whether it counts as under way.
  bool enter() {
    if (depth_ == 0) return false;
    std::unique_lock<std::mutex> lock(mutex_);
    left_.wait(lock, [this] { return depth_ == 0 || under_way_ < depth_; });
    ++under_way_;
    return true;
  }

  // The end of an operation, at the end of this object's life.
  class Leave {
   public:
    Leave(Share& share, bool counted) : share_(counted ? &share : nullptr) {}
    Leave(const Leave&) = delete;
    Leave& operator=(const Leave&) = delete;

    ~Leave() {
      if (share_ == nullptr) return;
      {
        std::lock_guard<std::mutex> lock(share_->mutex_);
        --share_->under_way_;
      }
      share_->left_.notify_all();
    }

   private:
    Share* share_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable left_;
  std::atomic<int> depth_{0};
  int under_way_ = 0;
};

// The shares of all streams, by a stream's index. MLX never uses an index again.
class Shares {
 public:
  static Shares& all() {
    static Shares* shares = new Shares();  // never destroyed: streams may outlive static destructors
    return *shares;
  }

  Share& of(int stream) {  // it stays where it is
    {
      std::shared_lock<std::shared_mutex> lock(mutex_);
      auto found = shares_.find(stream);
      if (found != shares_.end()) return found->second;
    }
    std::lock_guard<std::shared_mutex> lock(mutex_);
    return shares_[stream];
  }

  int default_width() const { return default_width_; }
  void set_default_width(int threads) { default_width_ = std::max(1, threads); }

 private:
  std::shared_mutex mutex_;
  std::unordered_map<int, Share> shares_;
  std::atomic<int> default_width_{1};
};

}  // namespace puffer
