// A policy's whole step for some agents, without MLX and without Python: observations to actions, log-probabilities,
// values and states. What it computes is `Policy.act` of policy/policy.py.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "arithmetic.h"
#include "sampling.h"
#include "stages.h"

namespace puffer {

// Memory of a rollout, time-major, of N agents.
struct Rollout {
  int64_t N;
  const void* observations;   // (T, N, D) float, or uint8 if `bytes`
  bool bytes;
  const float* terminals;     // (T, N): states are multiplied by 1 - terminal before a step; null: they aren't
  const uint8_t* masks;       // (T, N, A), or null
  const float* noise;         // (T, N, heads)
  float* actions;             // (T, N, heads)
  float* logprobs;            // (T, N)
  float* values;              // (T, N)
  std::vector<float*> states;  // (N, H) each
};

// Threads may call `act` at the same time, for different agents; weights and rollout must stay as they are meanwhile.
class Actor {
 public:
  // D inputs, H features; of each head its number of choices, or 1 if actions are continuous; how far from 0 these are
  // at most, which may be infinity.
  Actor(int inputs, int hidden, std::vector<int> sizes, bool continuous, float limit)
      : D_(inputs), H_(hidden), heads_(std::move(sizes), continuous, limit) {}

  // Weights are given as stages in their order: the first is the encoder, the last the decoder, A + 1 wide. Where values
  // have a network of their own, the critic's stages follow in the same order, the last 1 wide: what that gives replaces
  // the decoder's last output. The critic's states are the second half of all.
  void clear() {
    actor_.clear();
    critic_.clear();
    adding_ = &actor_;
  }
  void begin_critic() { adding_ = &critic_; }
  void add(std::unique_ptr<Stage> stage) { adding_->push_back(std::move(stage)); }
  void set_logstd(const float* logstd) { heads_.set_logstd(logstd); }

  void bind(Rollout rollout) {
    rollout_ = std::move(rollout);
    acting_ = sampling_ = 0;
  }

  // Step t of agents [first, first + count).
  void act(int t, int first, int count) {
    int64_t acting = 0, sampling = 0, before = now();
    Scratch scratch = scratch_of_thread();
    for (int done = 0; done < count; done += kBlock) {
      int64_t agent = first + done, some = std::min(kBlock, count - done);
      const float* outputs = evaluate(t, agent, int(some), scratch);
      int64_t after = now();
      acting += after - before;
      choose(t, agent, int(some), outputs, scratch);
      before = now();
      sampling += before - after;
    }
    acting_.fetch_add(acting, std::memory_order_relaxed);
    sampling_.fetch_add(sampling, std::memory_order_relaxed);
  }

  // Thread-seconds since `bind`: of the policy, and of choosing.
  double acting() const { return double(acting_) * 1e-9; }
  double sampling() const { return double(sampling_) * 1e-9; }

 private:
  using Stages = std::vector<std::unique_ptr<Stage>>;

  // A thread's memory for one block.
  struct Scratch {
    float *observations, *keep, *features[3], *outputs, *values, *work;
  };

  static int64_t now() {
    auto time = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  }

  int output_width() const { return padded(heads_.logits + 1); }

  Scratch scratch_of_thread() const {
    thread_local std::vector<Lanes> memory;
    size_t work = 2 * size_t(heads_.logits) * kLanes;
    for (auto stages : {&actor_, &critic_})
      for (auto& stage : *stages) work = std::max(work, stage->work());
    size_t rows = size_t(padded(D_)) + 3 * padded(H_) + output_width() + padded(1) + 1;
    size_t needed = (kBlock * rows + work) / kLanes + 1;
    if (memory.size() < needed) memory.resize(needed);
    float* at = reinterpret_cast<float*>(memory.data());
    auto take = [&at](int width) { return std::exchange(at, at + kBlock * width); };
    Scratch to;
    to.observations = take(padded(D_));
    for (auto& features : to.features) features = take(padded(H_));
    to.outputs = take(output_width());
    to.values = take(padded(1));
    to.keep = take(1);
    to.work = at;
    return to;
  }

  // The decoder's outputs (count, output_width()); states advance.
  const float* evaluate(int t, int64_t agent, int count, const Scratch& scratch) const {
    int64_t row = t * rollout_.N + agent;
    for (int i = 0; i < count; ++i) scratch.keep[i] = rollout_.terminals ? 1.0f - rollout_.terminals[row + i] : 1.0f;
    auto states = rollout_.states.data();
    Block block{agent, count, scratch.keep, states, scratch.features[0], scratch.work};
    Features x = observations(row, count, scratch.observations);
    run(actor_, block, x, scratch, scratch.outputs);
    if (critic_.empty()) return scratch.outputs;
    block.states = states + rollout_.states.size() / 2;
    run(critic_, block, x, scratch, scratch.values);
    float* to = scratch.outputs + heads_.logits;
    for (int i = 0; i < count; ++i) to[int64_t(i) * output_width()] = scratch.values[int64_t(i) * padded(1)];
    return scratch.outputs;
  }

  void run(const Stages& stages, const Block& block, Features x, const Scratch& scratch, float* outputs) const {
    for (size_t i = 0; i + 1 < stages.size(); ++i) {
      float* to = scratch.features[i ? 1 + i % 2 : 0];
      stages[i]->run(block, x, to);
      x = {to, padded(H_)};
    }
    stages.back()->run(block, x, outputs);
  }

  Features observations(int64_t row, int count, float* to) const {
    if (!rollout_.bytes) return {static_cast<const float*>(rollout_.observations) + row * D_, D_};
    auto from = static_cast<const uint8_t*>(rollout_.observations) + row * D_;
    for (int64_t i = 0; i < int64_t(count) * D_; ++i) to[i] = from[i];
    return {to, D_};
  }

  void choose(int t, int64_t agent, int count, const float* outputs, const Scratch& scratch) const {
    int64_t row = t * rollout_.N + agent, width = heads_.count(), A = heads_.logits;
    for (int i = 0; i < count; ++i) rollout_.values[row + i] = outputs[int64_t(i) * output_width() + A];
    Draw draw{rollout_.noise + row * width, rollout_.masks ? rollout_.masks + row * A : nullptr,
              rollout_.actions + row * width, rollout_.logprobs + row};
    sample(heads_, outputs, output_width(), count, draw, reinterpret_cast<Lanes*>(scratch.work));
  }

  int D_, H_;
  Heads heads_;
  Stages actor_, critic_;
  Stages* adding_ = &actor_;
  Rollout rollout_{};
  std::atomic<int64_t> acting_{0}, sampling_{0};  // nanoseconds
};

// For callers in C: `context` is an Actor.
inline void actor_act(void* context, int t, int first, int count) {
  static_cast<Actor*>(context)->act(t, first, count);
}

}  // namespace puffer
