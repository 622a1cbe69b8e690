// Sample actions from a decoder's outputs, as in `policy/distributions.py`; one vector has kLanes agents.

#pragma once

#include "ops/distributions.h"

namespace puffer {

// The action space, and the parameters of the action distribution that don't depend on observations.
struct Heads {
  std::vector<int> sizes;  // choices of each head, or 1 each for continuous actions
  bool continuous;
  float limit;     // largest |action| and |mean| of continuous actions
  int logits = 0;  // A, the sum of `sizes`
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

// Load one column of a matrix for up to kLanes agents.
template <class Number>
inline Lanes load_column(const Number* from, int64_t stride, int count) {
  Lanes lanes = {};
  for (int i = 0; i < count; ++i) lanes[i] = float(from[i * stride]);
  return lanes;
}

inline void store_column(float* to, int64_t stride, int count, Lanes lanes) {
  for (int i = 0; i < count; ++i) to[i * stride] = lanes[i];
}

// Logits of one head for up to kLanes agents (see distributions.h). mask: the head's first column of the action mask, whose rows are
// `stride` apart; null without a mask.
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

// Inputs and outputs of sampling for a block's agents; mask may be null.
struct Draw {
  const float* noise;    // (n, heads)
  const uint8_t* mask;   // (n, A)
  float* actions;        // (n, heads)
  float* logprobs;       // (n,)
};

// Sample the actions of `count` agents. outputs: logits or means, agents `stride` apart; work: scratch memory of 2 A vectors.
inline void sample(const Heads& heads, const float* outputs, int64_t stride, int count, const Draw& to, Lanes* work) {
  int width = heads.count(), A = heads.logits;
  Lanes *logits = work, *weights = work + A;
  for (int i = 0; i < count; i += kLanes) {
    int some = std::min(kLanes, count - i);
    for (int a = 0; a < A; ++a) logits[a] = load_column(outputs + i * stride + a, stride, some);
    Lanes logprob = {};
    for (int j = 0, a = 0; j < width; a += heads.sizes[j++]) {
      Lanes noise = load_column(to.noise + int64_t(i) * width + j, width, some), action, head_logprob;
      if (heads.continuous) {
        normal_draw(logits[j], noise, heads.limit, heads.logstd[j], heads.deviation[j], heads.precision[j], action, head_logprob);
      } else {
        auto mask = to.mask ? to.mask + int64_t(i) * A + a : nullptr;
        categorical_draw(LanesOfLogits{logits + a, weights, mask, A, some}, heads.sizes[j], noise, action, head_logprob);
      }
      logprob += head_logprob;
      store_column(to.actions + int64_t(i) * width + j, width, some, action);
    }
    store_column(to.logprobs + i, 1, some, logprob);
  }
}

}  // namespace puffer
