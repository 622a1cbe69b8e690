// The actor of ops/cpu/actor.h without MLX and Python: policies of every kind act for odd numbers of agents, on three
// threads at once and alone. Prints differences to standard error and exits with 1.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ops/cpu/actor.h"
#include "ops/norm/step.h"
#include "policy/networks/gru/step.h"
#include "policy/networks/lstm/step.h"
#include "policy/networks/mingru/step.h"

using namespace puffer;

using Floats = std::vector<float>;

static std::mt19937 generator(1);

static Floats normals(size_t count) {
  std::normal_distribution<float> normal(0, 0.5f);
  Floats numbers(count);
  for (auto& x : numbers) x = normal(generator);
  return numbers;
}

// Memory of exactly the size that is needed: a sanitizer sees what goes beyond.
struct Memory {
  Floats observations, terminals, noise, actions, logprobs, values;
  std::vector<uint8_t> bytes, masks;
  std::vector<Floats> states;
};

constexpr int T = 3, N = 3 * kBlock + 5, D = 7;

static Rollout rollout(Memory& memory, bool bytes) {
  Rollout to{N, nullptr, memory.observations.data(), bytes, memory.terminals.data(), nullptr, memory.noise.data(),
             memory.actions.data(), memory.logprobs.data(), memory.values.data(), {}};
  if (bytes) to.observations = memory.bytes.data();
  if (!memory.masks.empty()) to.masks = memory.masks.data();
  for (auto& state : memory.states) to.states.push_back(state.data());
  return to;
}

// Add a network layer of a kind to an actor. Returns the number of its recurrent states.
static int add_layer(Actor& actor, const std::string& kind, int H, int state) {
  Floats wide = normals(size_t(8) * H * H), narrow = normals(size_t(8) * H);
  const float *weight = wide.data(), *bias = narrow.data();
  const float *weight_hh = weight + 4 * H * H, *bias_hh = bias + 4 * H;
  if (kind == "mlp") return actor.add(make_dense(weight, bias, H, H, Activation::kTanh)), 0;
  if (kind == "mingru") return actor.add(std::make_unique<MinGRULayer>(weight, H, state)), 1;
  if (kind == "lstm") return actor.add(std::make_unique<LSTMLayer>(weight, bias, H, state)), 2;
  actor.add(std::make_unique<GRULayer>(weight, weight_hh, bias, bias_hh, H, state));
  return 1;
}

// Add an encoder and two network layers to an actor. Returns the number of their recurrent states.
static int add_features(Actor& actor, const std::string& kind, int H) {
  int states = 0;
  actor.add(make_dense(normals(size_t(H) * D).data(), nullptr, H, D, Activation::kNone));
  for (int layer = 0; layer < 2; ++layer) states += add_layer(actor, kind, H, states);
  if (kind == "gru") actor.add(std::make_unique<ResidualNorm>(normals(H).data(), H, 1e-7f));
  return states;
}

// Return true if an actor computes the same for some of the agents (neighbours and others) as for all, and changes nothing for the
// rest.
static bool for_some(Actor& actor, const Memory& start, const Memory& whole, bool bytes, int H, int heads) {
  std::vector<int32_t> rows;
  for (int agent = 0; agent < N; ++agent)
    if (agent < N / 3 || agent % 2) rows.push_back(agent);
  auto pick = [&](const Floats& states) {
    Floats own;
    for (int row : rows) own.insert(own.end(), states.begin() + row * H, states.begin() + (row + 1) * H);
    return own;
  };
  Memory some = start;
  for (auto& states : some.states) states = pick(states);
  Rollout to = rollout(some, bytes);
  to.rows = rows.data();
  actor.bind(to);
  Actors actors;
  actors.add(&actor, N, rows.data(), int64_t(rows.size()));
  std::vector<std::thread> threads;
  for (int part = 0; part < 3; ++part) {
    int first = N * part / 3, count = N * (part + 1) / 3 - first;
    threads.emplace_back([=, &actors] {
      for (int t = 0; t < T; ++t) acting_function<Actors>(&actors, t, first, count);
    });
  }
  for (auto& thread : threads) thread.join();
  bool right = true;
  for (int t = 0; t < T; ++t)
    for (int agent = 0, own = 0; agent < N; ++agent) {
      bool mine = own < int(rows.size()) && rows[own] == agent;
      own += mine;
      int64_t row = int64_t(t) * N + agent;
      const Memory& expected = mine ? whole : start;
      auto equal = [&](const Floats& a, const Floats& b, int width) {
        return !std::memcmp(a.data() + row * width, b.data() + row * width, sizeof(float) * width);
      };
      right = right && equal(some.actions, expected.actions, heads) && equal(some.logprobs, expected.logprobs, 1) &&
              equal(some.values, expected.values, 1);
    }
  for (size_t i = 0; i < some.states.size(); ++i) right = right && some.states[i] == pick(whole.states[i]);
  return right;
}

static void check(const std::string& kind, int H, std::vector<int> sizes, bool bytes, bool critic) {
  bool continuous = sizes[0] == 1;
  Actor actor(D, H, sizes, continuous, 1e6f);
  Memory memory;
  int heads = int(sizes.size()), A = 0;
  for (int size : sizes) A += size;
  actor.clear();
  int states = add_features(actor, kind, H);
  actor.add(make_dense(normals(size_t(A + 1) * H).data(), normals(A + 1).data(), A + 1, H, Activation::kNone));
  if (critic) {
    actor.begin_critic();
    states += add_features(actor, kind, H);
    actor.add(make_dense(normals(H).data(), normals(1).data(), 1, H, Activation::kNone));
  }
  if (continuous) actor.set_logstd(normals(heads).data());

  memory.observations = normals(size_t(T) * N * D);
  memory.bytes.resize(bytes ? size_t(T) * N * D : 0, 3);
  memory.masks.resize(continuous ? 0 : size_t(T) * N * A);
  for (auto& legal : memory.masks) legal = generator() % 2;
  memory.terminals.resize(T * N);
  for (auto& ended : memory.terminals) ended = float(generator() % 2);
  memory.noise = normals(size_t(T) * N * heads);
  memory.actions.resize(size_t(T) * N * heads);
  memory.logprobs.resize(T * N);
  memory.values.resize(T * N);
  for (int i = 0; i < states; ++i) memory.states.push_back(normals(size_t(N) * H));

  Memory alone = memory;
  const Memory start = memory;
  actor.bind(rollout(memory, bytes));
  std::vector<std::thread> threads;
  for (int part = 0; part < 3; ++part) {
    int first = N * part / 3, count = N * (part + 1) / 3 - first;
    threads.emplace_back([=, &actor] {
      for (int t = 0; t < T; ++t) acting_function<Actor>(&actor, t, first, count);
    });
  }
  for (auto& thread : threads) thread.join();
  actor.bind(rollout(alone, bytes));
  for (int t = 0; t < T; ++t)
    for (int agent = 0; agent < N; ++agent) acting_function<Actor>(&actor, t, agent, 1);

  auto same = [](const Floats& a, const Floats& b) {
    return a.empty() || !std::memcmp(a.data(), b.data(), sizeof(float) * a.size());
  };
  bool right = same(memory.actions, alone.actions) && same(memory.logprobs, alone.logprobs) &&
               same(memory.values, alone.values);
  for (int i = 0; i < states; ++i) right = right && same(memory.states[i], alone.states[i]);
  if (right && for_some(actor, start, alone, bytes, H, heads)) return;
  std::fprintf(stderr, "%s %d: agents that act alone, or with some of the others, find something else\n", kind.c_str(), H);
  std::_Exit(1);
}

int main() {
  for (const char* kind : {"mlp", "mingru", "lstm", "gru"}) {
    check(kind, 20, {3, 4}, false, false);
    check(kind, 5, {1, 1}, true, true);
  }
  std::printf("clean\n");
}
