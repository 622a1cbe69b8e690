// Vectors of float32 lanes, one register each, and elementary functions that are computed with vector arithmetic.

#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace puffer {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kRegisters = 32;
#elif defined(__AVX__)
constexpr int kLanes = 8, kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kLanes = 4, kRegisters = 32;
#else
constexpr int kLanes = 4, kRegisters = 16;
#endif

typedef float Lanes __attribute__((vector_size(sizeof(float) * kLanes)));
typedef int32_t IntLanes __attribute__((vector_size(sizeof(float) * kLanes)));
typedef float UnalignedLanes __attribute__((vector_size(sizeof(float) * kLanes), aligned(sizeof(float)), may_alias));

// Up to kLanes adjacent channels of a row.
struct Channels {
  int first, count;

  // The kLanes channels of a row from `first` on; fewer at the end of the row, which has `width` channels.
  Channels(int first, int width) : first(first), count(std::min(kLanes, width - first)) {}

  Lanes load(const float* row) const {  // lanes after the last channel are 0
    if (count == kLanes) return *reinterpret_cast<const UnalignedLanes*>(row + first);
    Lanes lanes = {};
    std::memcpy(&lanes, row + first, sizeof(float) * count);
    return lanes;
  }

  void store(float* row, Lanes lanes) const {
    if (count == kLanes)
      *reinterpret_cast<UnalignedLanes*>(row + first) = lanes;
    else
      std::memcpy(row + first, &lanes, sizeof(float) * count);
  }
};

inline float sum_of_lanes(Lanes lanes) {
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += lanes[i];
  return sum;
}

// Hyperbolic tangent by a rational approximation, absolute error 4e-7.
template <class V>  // Lanes, or float
inline V tanh(V x) {
  V limit = V{} + 7.9053111f;
  x = x > limit ? limit : x;  // in this order NaN stays NaN
  x = x < -limit ? -limit : x;
  V s = x * x;
  V p = -8.60467152213735e-11f + s * (2.00018790482477e-13f - s * 2.76076847742355e-16f);
  p = 1.48572235717979e-05f + s * (5.12229709037114e-08f + s * p);
  p = x * (4.89352455891786e-03f + s * (6.37261928875436e-04f + s * p));
  V q = 1.18534705686654e-04f + s * 1.19825839466702e-06f;
  q = 4.89352518554385e-03f + s * (2.26843463243900e-03f + s * q);
  return p / q;
}

// Logistic function, absolute error 4e-7.
template <class V>
inline V logistic(V x) {
  return 0.5f * tanh(0.5f * x) + 0.5f;
}

// max(x, 0); NaN stays NaN.
inline Lanes relu(Lanes x) { return x < Lanes{} ? Lanes{} : x; }

// e^x for x in [-87, 0], relative error 2e-7: 2^n e^r with |r| <= ln(2) / 2 and e^r as its Taylor polynomial.
inline Lanes exp_negative(Lanes x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, held in the lowest bits
  Lanes shifted = x * 1.44269504f + kRound, n = shifted - kRound;
  Lanes r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln(2) as the sum of two numbers
  Lanes p = 8.33333333e-03f + r * (1.38888889e-03f + r * 1.98412698e-04f);
  p = 1.0f + r * (1.0f + r * (0.5f + r * (1.66666667e-01f + r * (4.16666667e-02f + r * p))));
  IntLanes power = ((IntLanes)shifted - std::bit_cast<int32_t>(kRound) + 127) << 23;
  return p * (Lanes)power;
}

}  // namespace puffer
