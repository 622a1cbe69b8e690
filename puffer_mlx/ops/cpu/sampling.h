// Actions from a decoder's outputs, without MLX: what `policy/distributions.py` computes, for as many agents at once as
// a vector has lanes.

#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "arithmetic.h"

namespace puffer {

constexpr float kMasked = -1e4f;        // `MASKED` of policy/distributions.py
constexpr float kLargest = 3.4028e38f;  // its `LARGEST`

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

// At most `limit` from 0; NaN stays.
inline Lanes within(Lanes x, float limit) {
  Lanes most = Lanes{} + limit;
  x = x > most ? most : x;
  return x < -most ? -most : x;
}

// e^x for x <= 0; 0 below -87.
inline Lanes exp_to_zero(Lanes x) {
  Lanes lowest = Lanes{} - 87.0f;
  return x < lowest ? Lanes{} : exp_negative(x);
}

// Natural logarithm of x >= 1, finite, relative error 2e-7: x = 2^n m with m in [1 / sqrt(2), sqrt(2)), and log m =
// 2 atanh((m - 1) / (m + 1)) as its Taylor polynomial.
inline Lanes log_from_one(Lanes x) {
  IntLanes bits = (IntLanes)x, power = ((bits - 0x3f3504f3) >> 23) << 23;  // 0x3f3504f3: 1 / sqrt(2)
  Lanes m = (Lanes)(bits - power), n = __builtin_convertvector(power >> 23, Lanes);
  Lanes s = (m - 1.0f) / (m + 1.0f), s2 = s * s;
  Lanes p = 0.333333333f + s2 * (0.2f + s2 * 0.142857143f);
  return n * 0.693147181f + 2.0f * (s + s * s2 * p);
}

// NaN is 0, infinities become the largest numbers.
inline Lanes finite(Lanes x) {
  Lanes infinity = Lanes{} + std::numeric_limits<float>::infinity(), largest = Lanes{} + kLargest;
  x = x != x ? Lanes{} : x;
  x = x == infinity ? largest : x;
  return x == -infinity ? -largest : x;
}

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

// The choices of up to kLanes agents in one head: the action, and its log-probability.
struct Choice {
  Lanes action, logprob;
};

// By inverting the cumulative distribution: the first choice up to which it is more than `uniform`, or the last legal
// one where rounding leaves none. `logits` and `weights` (size,): the former as the decoder gave them, the latter to
// work in. `mask` is the agents' column of the first choice, or null.
//
// Python subtracts top + log(sum) at once, which rounds where logits are large; so does this, as training's
// log-probabilities are compared with these.
inline Choice choose(Lanes* logits, Lanes* weights, int size, Lanes uniform, const uint8_t* mask, int64_t stride,
                     int count) {
  Lanes top = Lanes{} - std::numeric_limits<float>::infinity(), last = mask ? Lanes{} : Lanes{} + float(size - 1);
  for (int a = 0; a < size; ++a) {
    Lanes x = finite(logits[a]);
    if (mask) {
      IntLanes legal = load_column(mask + a, stride, count) != Lanes{};
      x = legal ? x : Lanes{} + kMasked;
      last = legal ? Lanes{} + float(a) : last;
    }
    logits[a] = x;
    top = x > top ? x : top;
  }
  Lanes sum = {};
  for (int a = 0; a < size; ++a) sum += weights[a] = exp_to_zero(logits[a] - top);
  Lanes bound = uniform * sum, reached = {}, below = {};
  for (int a = 0; a < size; ++a) {
    reached += weights[a];
    below += reached <= bound ? Lanes{} + 1.0f : Lanes{};
  }
  Lanes action = below < last ? below : last, chosen = {};
  for (int a = 0; a < size; ++a) chosen = action == float(a) ? logits[a] : chosen;
  return {action, chosen - (top + log_from_one(sum))};
}

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
      Lanes noise = load_column(to.noise + int64_t(i) * width + j, width, some), action;
      if (heads.continuous) {
        Lanes mean = within(finite(logits[j]), heads.limit);
        action = within(mean + heads.deviation[j] * noise, heads.limit);
        Lanes distance = (action - mean) * heads.precision[j];
        logprob += -0.5f * distance * distance - 0.918938533f - heads.logstd[j];  // log(2 pi) / 2
      } else {
        auto mask = to.mask ? to.mask + int64_t(i) * A + a : nullptr;
        Choice choice = choose(logits + a, weights, heads.sizes[j], noise, mask, A, some);
        action = choice.action;
        logprob += choice.logprob;
      }
      store_column(to.actions + int64_t(i) * width + j, width, some, action);
    }
    store_column(to.logprobs + i, 1, some, logprob);
  }
}

}  // namespace puffer
