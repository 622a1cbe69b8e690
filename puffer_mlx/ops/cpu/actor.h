// One step of a policy in C++, without MLX or Python: from observations to actions, log-probabilities, values and states. It
// computes `Policy.act` of policy/policy.py.

#pragma once

#include <atomic>
#include <chrono>

#include "arithmetic.h"
#include "sampling.h"
#include "stages.h"

namespace puffer {

// Arrays of a rollout (time-major, N agents), and the agents for which an actor acts.
struct Rollout {
  int64_t N;
  const int32_t* rows;        // (n,) the actor's agents, ascending; null for all N
  const void* observations;   // (T, N, D) float, or uint8 if `bytes`
  bool bytes;
  const float* terminals;     // (T, N): a step first multiplies states by 1 - terminal; null: states are never reset
  const uint8_t* masks;       // (T, N, A), or null
  const float* noise;         // (T, N, heads)
  float* actions;             // (T, N, heads)
  float* logprobs;            // (T, N)
  float* values;              // (T, N)
  std::vector<float*> states;  // (n, H) each
};

// A policy that acts in C++. Threads may call `act` concurrently for different agents while weights and rollout stay the same.
class Actor {
 public:
  // inputs: size D of an observation; hidden: number H of features; sizes: choices of each head, or 1 each for continuous actions;
  // limit: largest |action| of continuous actions, may be infinity.
  Actor(int inputs, int hidden, std::vector<int> sizes, bool continuous, float limit)
      : D_(inputs), H_(hidden), heads_(std::move(sizes), continuous, limit) {}

  // Stages are added in order: the encoder first, the decoder with A + 1 outputs last. The stages of a separate critic follow in the
  // same order, the last with 1 output, which replaces the decoder's last output. The second half of the states are the critic's.
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

  // Act at step t for the actor's agents [first, first + count).
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

  // Thread-seconds since `bind` that the policy's network took, and that sampling took.
  double acting() const { return double(acting_) * 1e-9; }
  double sampling() const { return double(sampling_) * 1e-9; }

 private:
  using Stages = std::vector<std::unique_ptr<Stage>>;

  // Scratch memory of one thread for one block. The last four fields are used if the block's agents aren't adjacent.
  struct Scratch {
    float *observations, *not_done, *features[3], *outputs, *values, *work;
    float *noise, *actions, *logprobs;
    uint8_t* masks;
  };

  // Rows of a block's agents in a rollout.
  struct Place {
    int64_t first;         // row of the first agent, or of agent 0 if they aren't adjacent
    const int32_t* apart;  // offset of each agent's row; null if they are adjacent

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
    to.not_done = take(1);
    to.noise = take(width);
    to.actions = take(width);
    to.logprobs = take(1);
    to.work = at;
    return to;
  }

  // Run the networks and advance the states. Returns the decoder's outputs, (count, output_width()).
  const float* evaluate(const Place& place, int64_t agent, int count, const Scratch& scratch) const {
    for (int i = 0; i < count; ++i) scratch.not_done[i] = rollout_.terminals ? 1.0f - rollout_.terminals[place[i]] : 1.0f;
    auto states = rollout_.states.data();
    Block block{agent, count, scratch.not_done, states, scratch.features[0], scratch.work};
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

  // Copy the rows of a block's agents, `width` numbers each, to adjacent rows.
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

// Several policies that act in one rollout, each for some of the agents.
class Actors {
 public:
  // Add an actor. rows: (count,) its agents among all N, ascending; the actor must be bound to the same rows.
  void add(Actor* actor, int64_t N, const int32_t* rows, int64_t count) {
    Share share{actor, std::vector<int32_t>(N + 1)};
    for (int64_t agent = 0, before = 0; agent <= N; ++agent) {
      share.before[agent] = int32_t(before);
      if (before < count && rows[before] == agent) ++before;
    }
    all_.push_back(std::move(share));
  }

  // Act at step t for agents [first, first + count).
  void act(int t, int first, int count) {
    for (auto& share : all_) {
      int from = share.before[first], end = share.before[first + count];
      if (from < end) share.actor->act(t, from, end - from);
    }
  }

 private:
  struct Share {
    Actor* actor;
    std::vector<int32_t> before;  // (N + 1,): number of the actor's agents below each index
  };

  std::vector<Share> all_;
};

// C entry point; `context` is an Actor or Actors.
template <class Acts>
void acting_function(void* context, int t, int first, int count) {
  static_cast<Acts*>(context)->act(t, first, count);
}

}  // namespace puffer
