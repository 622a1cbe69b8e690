// The thread pool (ops/cpu/threads.h) and the stream limits (ops/cpu/stream_limits.h) without MLX: several callers at once, each with its own
// width; a stream with few operations in progress. Prints errors to standard error and exits with 1.
//
//   pool CALLERS BATCHES SECONDS
//
// SECONDS: what a thread may take to begin before it counts as missing.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "stream_limits.h"
#include "threads.h"

using puffer::Pool;

static std::chrono::seconds patience;

static void expect(bool right, const std::string& what) {
  if (right) return;
  std::fprintf(stderr, "%s\n", what.c_str());
  std::_Exit(1);
}

// Run one batch in the pool and check it: every part is run once, by at most `width` threads, the caller being the only one if that
// is 1; plain memory that a part writes is the caller's to read afterwards.
static void run_batch(int parts, int width) {
  std::vector<int> times(parts, 0);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  Pool::shared().run(parts, width, [&](int part) {
    ++times[part];
    std::lock_guard<std::mutex> lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  for (int part = 0; part < parts; ++part)
    expect(times[part] == 1, "part " + std::to_string(part) + " ran " + std::to_string(times[part]) + " times");
  expect(static_cast<int>(threads.size()) <= std::max(1, width), "more threads than the width");
  if (width <= 1 && parts) expect(threads.count(std::this_thread::get_id()) == 1, "not on the caller's thread");
}

static void many_callers(int callers, int batches) {
  std::vector<std::thread> threads;
  for (int caller = 0; caller < callers; ++caller) {
    threads.emplace_back([=] {
      const int sizes[] = {0, 1, 2, 3, 16, 100};
      for (int i = 0; i < batches; ++i) run_batch(sizes[(i + caller) % 6], (i / 6 + caller) % 5);
    });
  }
  for (auto& thread : threads) thread.join();
}

// Check that batches of several callers run at once: no part ends before all parts of all batches have begun.
static void all_at_once(int callers, int width) {
  std::mutex mutex;
  std::condition_variable met;
  int begun = 0;
  std::vector<std::thread> threads;
  for (int caller = 0; caller < callers; ++caller) {
    threads.emplace_back([&] {
      Pool::shared().run(width, width, [&](int) {
        std::unique_lock<std::mutex> lock(mutex);
        if (++begun == callers * width) met.notify_all();
        bool all = met.wait_for(lock, patience, [&] { return begun == callers * width; });
        expect(all, "too few threads took part");
      });
    });
  }
  for (auto& thread : threads) thread.join();
}

// Check that a batch's parts may run batches themselves. They'd never end if batches ran one after the other, or if a batch needed
// a helper that is busy elsewhere.
static void one_inside_the_other() {
  Pool::shared().run(3, 3, [](int) { run_batch(50, 3); });  // each part a caller itself
}

static void a_part_throws() {
  for (int failing : {0, 7, 19}) {
    bool caught = false;
    try {
      Pool::shared().run(20, 4, [=](int part) {
        if (part == failing) throw std::runtime_error("part");
      });
    } catch (const std::runtime_error&) {
      caught = true;
    }
    expect(caught, "an exception was lost");
  }
  run_batch(20, 4);
}

// Check that at most the allowed number of operations is in flight. A thread hands them to a stream's thread as evaluation does,
// while the limit changes all the time.
static void few_under_way(int operations) {
  puffer::StreamLimits limits;
  std::mutex mutex;
  std::condition_variable handed;
  std::deque<std::function<void()>> queue;
  std::atomic<int> counted{0}, most{1};
  int done = 0;
  std::thread stream([&] {
    std::unique_lock<std::mutex> lock(mutex);
    for (; done < operations; ++done) {
      handed.wait(lock, [&] { return !queue.empty(); });
      auto operation = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      operation();
      lock.lock();
    }
  });
  for (int i = 0; i < operations; ++i) {
    if (i % 50 == 0) {
      int depth = i / 50 % 4;
      limits.set_max_in_flight(depth);
      most = depth ? std::max(depth, counted.load()) : operations;
    }
    bool counts = limits.enter();
    expect(counts == (limits.max_in_flight() > 0), "counted without a depth");
    expect((counted += counts) <= most, "too many under way");
    std::lock_guard<std::mutex> lock(mutex);
    queue.push_back([&, counts] {
      puffer::StreamLimits::Leave leave(limits, counts);
      counted -= counts;
    });
    handed.notify_one();
  }
  stream.join();
  expect(counted == 0, "some never left");
}

// Check that lifting a stream's limit lets a waiting thread continue.
static void a_limit_is_lifted() {
  puffer::StreamLimits limits;
  limits.set_max_in_flight(1);
  expect(limits.enter(), "not counted");
  std::atomic<bool> entered{false};
  std::thread waiting([&] {
    limits.enter();
    entered = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  expect(!entered, "entered beyond the depth");
  limits.set_max_in_flight(0);
  waiting.join();
}

int main(int, char** arguments) {
  int callers = std::atoi(arguments[1]), batches = std::atoi(arguments[2]);
  patience = std::chrono::seconds(std::atoi(arguments[3]));
  for (int width : {1, 2, 5}) {
    all_at_once(1, width);
    all_at_once(3, width);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // all helpers sleep
  all_at_once(1, 3);
  one_inside_the_other();
  a_part_throws();
  few_under_way(batches);
  a_limit_is_lifted();
  many_callers(callers, batches);
  std::printf("clean\n");
}
