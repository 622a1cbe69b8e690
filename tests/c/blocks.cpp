// Blocks of threads of a kernel that runs as C++: a library for all of them, since these headers take
// a compiler longer than most kernels do.
#undef _FORTIFY_SOURCE  // it would take a thread's stack for a mistake
#include "blocks.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <csetjmp>
#include <functional>
#include <memory>
#include <thread>
#include <ucontext.h>
#include <vector>

// A block's threads are contexts of one thread: each runs up to a barrier, then the next one does.
// From barrier to barrier the order turns round, beginning with one or the other (`turn`): where a
// barrier is missing, the two find different numbers.
struct Block {
  struct Thread { ucontext_t begins; jmp_buf at; bool begun; };
  jmp_buf home;
  std::vector<Thread> threads;
  std::function<void(uint)> work;
  uint now = 0, waiting = 0;
};
static thread_local Block* running;
static thread_local std::barrier<>* cluster;
static void begin_thread() {
  running->work(running->now);
  _longjmp(running->home, 1);
}
void meet() {
  ++running->waiting;
  if (!_setjmp(running->threads[running->now].at)) _longjmp(running->home, 1);
}
static void go_on(Block& block) {  // not by swapcontext, which asks the kernel for signals' masks
  Block::Thread& thread = block.threads[block.now];
  if (_setjmp(block.home)) return;
  if (thread.begun) _longjmp(thread.at, 1);
  thread.begun = true;
  setcontext(&thread.begins);
}
void meet_cluster() {
  meet();
  if (running->now == 0) cluster->arrive_and_wait();
  meet();
}
static constexpr size_t kStack = 128 << 10;
static int run_block(uint b, uint here, uint size, uint turn, Kernel* kernel, const void* given) {
  Block block;
  running = &block;
  static thread_local std::unique_ptr<char[]> stacks;
  static thread_local uint room = 0;
  if (size > room) {  // what isn't used is never touched, and so costs nothing
    stacks.reset(new char[kStack * size]);
    room = size;
  }
  block.threads = std::vector<Block::Thread>(here);
  block.work = [&](uint me) { kernel(given, {{b * size + me, 0, 0}, {b, 0, 0}, {me, 0, 0}}); };
  for (uint me = 0; me < here; ++me) {
    auto& at = block.threads[me].begins;
    getcontext(&at);
    at.uc_stack.ss_sp = stacks.get() + kStack * me;
    at.uc_stack.ss_size = kStack;
    at.uc_link = nullptr;
    makecontext(&at, begin_thread, 0);
  }
  for (uint phase = turn;; ++phase) {
    block.waiting = 0;
    for (uint n = 0; n < here; ++n) {
      block.now = phase % 2 ? here - 1 - n : n;
      go_on(block);
    }
    if (block.waiting == 0) return 1;
    if (block.waiting != here) return 0;
  }
}
// Run the thread blocks of an emulated kernel, `together` neighbouring ones at a time, each in a thread with separate shared
// memory.
int run_blocks(uint threads, uint size, uint turn, uint together, Kernel* kernel, const void* given) {
  uint blocks = (threads + size - 1) / size;
  if (together == 1) {
    for (uint b = 0; b < blocks; ++b)
      if (!run_block(b, std::min(size, threads - b * size), size, turn, kernel, given)) return 0;
    return 1;
  }
  std::atomic<int> right = 1;
  for (uint first = 0; first < blocks; first += together) {
    std::barrier<> meeting(together);
    std::vector<std::jthread> running_now;
    for (uint b = first; b < first + together; ++b)
      running_now.emplace_back([&, b] {
        cluster = &meeting;
        if (!run_block(b, size, size, turn, kernel, given)) right = 0;
        meeting.arrive_and_drop();
      });
  }
  return right;
}
