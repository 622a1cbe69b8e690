// Actions from a decoder's outputs, without MLX: what `policy/distributions.py` computes, for as many agents at once as
// a vector has lanes.

#pragma once

#include "ops/distributions.h"

namespace puffer {

// What actions are, and what their distribution needs beside an agent's outputs.
struct Heads {
  std::vector<int> sizes;  // of each head its number of choices, or 1 if actions are continuous
  bool continuous;
  float limit;     // continuous actions and their means are at most this far from 0
  int logits = 0;  // A, their sum
  std::vector<float> logstd, deviation, precision;  // (heads,): s, e^s and e^-s, if continuous

  Heads(std::vector<int> sizes, bool continuous, float limit)
      : sizes(std::move(sizes)), continuous(continuous), limit(limit) {
    for (int size : this->sizes) logits += size;
  }

  int count() const { return int(sizes.size()); }

  void set_logstd(const float* s) {
    logstd.assign(s, s + count());
    deviation.resize(count());
    precision.resize(count());
    for (int j = 0; j < count(); ++j) deviation[j] = std::exp(s[j]), precision[j] = std::exp(-s[j]);
  }
};

// Up to kLanes agents' numbers in one column of a matrix of rows.
template <class Number>
inline Lanes load_column(const Number* from, int64_t stride, int count) {
  Lanes lanes = {};
  for (int i = 0; i < count; ++i) lanes[i] = float(from[i * stride]);
  return lanes;
}

inline void store_column(float* to, int64_t stride, int count, Lanes lanes) {
  for (int i = 0; i < count; ++i) to[i * stride] = lanes[i];
}

// The logits of up to kLanes agents in one head, and what is remembered of them; `mask` is the agents' column of the first
// choice, rows `stride` apart, or null.
struct LanesOfLogits {
  Lanes *logits, *weights;  // (size,)
  const uint8_t* mask;
  int64_t stride;
  int count;

  Lanes at(int k) const { return logits[k]; }
  void set(int k, Lanes x) const { logits[k] = x; }
  bool masked() const { return mask; }
  IntLanes legal(int k) const { return load_column(mask + k, stride, count) != Lanes{}; }
  Lanes keep(int k, Lanes e) const { return weights[k] = e; }
  Lanes weight(int k, Lanes) const { return weights[k]; }
};

// Where the random numbers of a block's first agent are, its legal actions (or null), and where its choice goes; the
// next agents' follow.
struct Draw {
  const float* noise;    // (n, heads)
  const uint8_t* mask;   // (n, A)
  float* actions;        // (n, heads)
  float* logprobs;       // (n,)
};

// Of `count` agents, whose outputs (logits or means) begin `stride` apart. `work` has room for 2 A vectors.
inline void sample(const Heads& heads, const float* outputs, int64_t stride, int count, const Draw& to, Lanes* work) {
  int width = heads.count(), A = heads.logits;
  Lanes *logits = work, *weights = work + A;
  for (int i = 0; i < count; i += kLanes) {
    int some = std::min(kLanes, count - i);
    for (int a = 0; a < A; ++a) logits[a] = load_column(outputs + i * stride + a, stride, some);
    Lanes logprob = {};
    for (int j = 0, a = 0; j < width; a += heads.sizes[j++]) {
      Lanes noise = load_column(to.noise + int64_t(i) * width + j, width, some), action, own;
      if (heads.continuous) {
        normal_draw(logits[j], noise, heads.limit, heads.logstd[j], heads.deviation[j], heads.precision[j], action, own);
      } else {
        auto mask = to.mask ? to.mask + int64_t(i) * A + a : nullptr;
        categorical_draw(LanesOfLogits{logits + a, weights, mask, A, some}, heads.sizes[j], noise, action, own);
      }
      logprob += own;
      store_column(to.actions + int64_t(i) * width + j, width, some, action);
    }
    store_column(to.logprobs + i, 1, some, logprob);
  }
}

}  // namespace puffer
