// A policy's whole step for some agents, without MLX and without Python: observations to actions, log-probabilities,
// values and states. What it computes is `Policy.act` of policy/policy.py.

#pragma once

#include <atomic>
#include <chrono>

#include "arithmetic.h"
#include "sampling.h"
#include "stages.h"

namespace puffer {

// Memory of a rollout, time-major, of N agents; and which of them are the actor's own.
struct Rollout {
  int64_t N;
  const int32_t* rows;        // (n,) its agents among the N, ascending; null: all
  const void* observations;   // (T, N, D) float, or uint8 if `bytes`
  bool bytes;
  const float* terminals;     // (T, N): states are multiplied by 1 - terminal before a step; null: they aren't
  const uint8_t* masks;       // (T, N, A), or null
  const float* noise;         // (T, N, heads)
  float* actions;             // (T, N, heads)
  float* logprobs;            // (T, N)
  float* values;              // (T, N)
  std::vector<float*> states;  // (n, H) each
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

  // Step t of its own agents [first, first + count).
  void act(int t, int first, int count) {
    int64_t acting = 0, sampling = 0, before = now();
    Scratch scratch = scratch_of_thread();
    for (int done = 0; done < count; done += kBlock) {
      int64_t agent = first + done, some = std::min(kBlock, count - done);
      Place place = place_of(t, agent, int(some));
      const float* outputs = evaluate(place, agent, int(some), scratch);
      int64_t after = now();
      acting += after - before;
      choose(place, int(some), outputs, scratch);
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

  // A thread's memory for one block; the last four for agents that aren't neighbours.
  struct Scratch {
    float *observations, *keep, *features[3], *outputs, *values, *work;
    float *noise, *actions, *logprobs;
    uint8_t* masks;
  };

  // Where a block's agents are in a rollout.
  struct Place {
    int64_t first;         // the first one's row, or that of agent 0 if they aren't neighbours
    const int32_t* apart;  // how far each one's is from there; null: they are neighbours

    int64_t operator[](int i) const { return first + (apart ? apart[i] : i); }
  };

  Place place_of(int t, int64_t agent, int count) const {
    int64_t begin = t * rollout_.N;
    if (!rollout_.rows) return {begin + agent, nullptr};
    auto rows = rollout_.rows + agent;
    if (rows[count - 1] - rows[0] == count - 1) return {begin + rows[0], nullptr};
    return {begin, rows};
  }

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
    int width = heads_.count(), bytes = padded((heads_.logits + 3) / 4);
    size_t rows = size_t(padded(D_)) + 3 * padded(H_) + output_width() + padded(1) + 2 + 2 * width + bytes;
    size_t needed = (kBlock * rows + work) / kLanes + 1;
    if (memory.size() < needed) memory.resize(needed);
    float* at = reinterpret_cast<float*>(memory.data());
    auto take = [&at](int width) { return std::exchange(at, at + kBlock * width); };
    Scratch to;
    to.observations = take(padded(D_));
    for (auto& features : to.features) features = take(padded(H_));
    to.outputs = take(output_width());
    to.values = take(padded(1));
    to.masks = reinterpret_cast<uint8_t*>(take(bytes));
    to.keep = take(1);
    to.noise = take(width);
    to.actions = take(width);
    to.logprobs = take(1);
    to.work = at;
    return to;
  }

  // The decoder's outputs (count, output_width()); states advance.
  const float* evaluate(const Place& place, int64_t agent, int count, const Scratch& scratch) const {
    for (int i = 0; i < count; ++i) scratch.keep[i] = rollout_.terminals ? 1.0f - rollout_.terminals[place[i]] : 1.0f;
    auto states = rollout_.states.data();
    Block block{agent, count, scratch.keep, states, scratch.features[0], scratch.work};
    Features x = observations(place, count, scratch.observations);
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

  Features observations(const Place& place, int count, float* to) const {
    if (rollout_.bytes) {
      auto from = static_cast<const uint8_t*>(rollout_.observations);
      int64_t together = place.apart ? 1 : count;
      for (int64_t i = 0; i < count; i += together)
        std::copy_n(from + place[int(i)] * D_, together * D_, to + i * D_);
      return {to, D_};
    }
    auto from = static_cast<const float*>(rollout_.observations);
    return {place.apart ? gathered(from, D_, place, count, to) : from + place.first * D_, D_};
  }

  // Rows of a block's agents, `width` wide, one behind the other.
  template <class Number>
  static Number* gathered(const Number* from, int64_t width, const Place& place, int count, Number* to) {
    for (int i = 0; i < count; ++i) std::memcpy(to + i * width, from + place[i] * width, width * sizeof(Number));
    return to;
  }

  static void scatter(const float* from, int64_t width, const Place& place, int count, float* to) {
    for (int i = 0; i < count; ++i) std::memcpy(to + place[i] * width, from + i * width, width * sizeof(float));
  }

  void choose(const Place& place, int count, const float* outputs, const Scratch& scratch) const {
    int64_t width = heads_.count(), A = heads_.logits;
    for (int i = 0; i < count; ++i) rollout_.values[place[i]] = outputs[int64_t(i) * output_width() + A];
    auto work = reinterpret_cast<Lanes*>(scratch.work);
    if (!place.apart) {
      int64_t row = place.first;
      Draw draw{rollout_.noise + row * width, rollout_.masks ? rollout_.masks + row * A : nullptr,
                rollout_.actions + row * width, rollout_.logprobs + row};
      return sample(heads_, outputs, output_width(), count, draw, work);
    }
    Draw draw{gathered(rollout_.noise, width, place, count, scratch.noise),
              rollout_.masks ? gathered(rollout_.masks, A, place, count, scratch.masks) : nullptr, scratch.actions,
              scratch.logprobs};
    sample(heads_, outputs, output_width(), count, draw, work);
    scatter(draw.actions, width, place, count, rollout_.actions);
    scatter(draw.logprobs, 1, place, count, rollout_.logprobs);
  }

  int D_, H_;
  Heads heads_;
  Stages actor_, critic_;
  Stages* adding_ = &actor_;
  Rollout rollout_{};
  std::atomic<int64_t> acting_{0}, sampling_{0};  // nanoseconds
};

// Several policies that act in one rollout, each for agents of its own.
class Actors {
 public:
  // Its `count` agents among the N are `rows`, ascending; it is bound to them.
  void add(Actor* actor, int64_t N, const int32_t* rows, int64_t count) {
    Own own{actor, std::vector<int32_t>(N + 1)};
    for (int64_t agent = 0, before = 0; agent <= N; ++agent) {
      own.before[agent] = int32_t(before);
      if (before < count && rows[before] == agent) ++before;
    }
    all_.push_back(std::move(own));
  }

  // Step t of agents [first, first + count), whoever acts for them.
  void act(int t, int first, int count) {
    for (auto& own : all_) {
      int from = own.before[first], end = own.before[first + count];
      if (from < end) own.actor->act(t, from, end - from);
    }
  }

 private:
  struct Own {
    Actor* actor;
    std::vector<int32_t> before;  // (N + 1,): how many of its agents come before each of the N
  };

  std::vector<Own> all_;
};

// For callers in C: `context` is an Actor, or Actors.
template <class Acts>
void acting_function(void* context, int t, int first, int count) {
  static_cast<Acts*>(context)->act(t, first, count);
}

}  // namespace puffer
