// Layers (stages) of a policy for one step of a block of agents, without MLX. A layer processes the sums of a product while they are
// in registers. A block's features stay in the L1 cache from the first layer to the last.
//
// An agent's results don't depend on the other agents in its block: every sum is over one row, in a fixed order.

#pragma once

#include "arithmetic.h"
#include "ops/cpu/activations.h"
#include "product.h"

namespace puffer {

constexpr int kBlock = 64;  // agents per block

// Width of a zero-padded row: a multiple of the vector size.
constexpr int padded(int width) { return (width + kLanes - 1) / kLanes * kLanes; }

// A vector in one of the actor's rows, which are aligned.
typedef float AlignedLanes __attribute__((vector_size(sizeof(float) * kLanes), may_alias));

inline AlignedLanes& lanes_at(float* row, int channel) { return *reinterpret_cast<AlignedLanes*>(row + channel); }
inline Lanes lanes_at(const float* row, int channel) { return *reinterpret_cast<const AlignedLanes*>(row + channel); }

// Features of a block's agents, one row each.
struct Features {
  const float* rows;
  int64_t stride;

  const float* operator[](int row) const { return rows + row * stride; }
};

// A block: one step of some agents.
struct Block {
  int64_t first;               // index of the first agent among all
  int count;                   // at most kBlock
  const float* not_done;       // (count,): states are multiplied by it first
  float* const* states;        // (N, H) each
  const float* network_input;  // (count, padded(H)), the encoder's output
  float* work;                 // scratch memory, Stage::work() floats

  float* state(int which, int row, int H) const { return states[which] + (first + row) * H; }
};

// A layer, which computes features from features.
class Stage {
 public:
  virtual ~Stage() = default;

  // Write the layer's features for the block to `to`, (block.count, padded(width)).
  virtual void run(const Block& block, Features x, float* to) const = 0;

  virtual size_t work() const { return 0; }
};

// A packed matrix as separate panels, so that one stays in cache while all rows of a block are multiplied by it.
template <int V>
using Panels = std::vector<Packed<V>>;

// Pack the rows of `weight` (M, K) as columns.
template <int V>
Panels<V> pack_rows(const float* weight, int M, int K) {
  Panels<V> panels;
  for (int first = 0; first < M; first += V * kLanes) {
    panels.emplace_back(K, 1, 1, [=](int, int v, int lane) -> const float* {
      int row = first + v * kLanes + lane;
      return row < M ? weight + int64_t(row) * K : nullptr;
    });
  }
  return panels;
}

// Pack `weight` (V H, K) of V gates into panels of kLanes channels of each gate.
template <int V>
Panels<V> pack_gates(const float* weight, int H, int K) {
  Panels<V> panels;
  for (int first = 0; first < H; first += kLanes) {
    panels.emplace_back(K, 1, 1, [=](int, int part, int lane) -> const float* {
      int channel = first + lane;
      return channel < H ? weight + (int64_t(part) * H + channel) * K : nullptr;
    });
  }
  return panels;
}

// Copy `parts` rows of `width` floats with zero padding; all zeros if `from` is null.
inline std::vector<Lanes> pad(const float* from, int parts, int width) {
  std::vector<Lanes> to(size_t(parts) * padded(width) / kLanes);
  for (int part = 0; from && part < parts; ++part)
    std::copy_n(from + int64_t(part) * width, width, reinterpret_cast<float*>(to.data()) + part * padded(width));
  return to;
}

// Multiply the rows x by a packed matrix. Calls epilogue(row, first channel of the panel, V vectors of sums) for each row and panel.
// step: channels per panel.
template <int V, class Epilogue>
inline void multiply_block(int count, const Panels<V>& panels, int step, Features x, Epilogue epilogue) {
  for (size_t p = 0; p < panels.size(); ++p) {
    int channel = int(p) * step;
    auto finish = [&, channel](int row, int, const Lanes* sums) { epilogue(row, channel, sums); };
    multiply_rows(0, count, panels[p], panels[p].depth, [=](int row) { return x[row]; }, finish);
  }
}

// Linear layer with an activation: y = activation(W x + b).
template <int V>
class Dense : public Stage {
 public:
  // weight (M, K), bias (M,) or null.
  Dense(const float* weight, const float* bias, int M, int K, Activation activation)
      : width_(padded(M)), activation_(activation), panels_(pack_rows<V>(weight, M, K)), bias_(pad(bias, 1, M)) {}

  void run(const Block& block, Features x, float* to) const override {
    multiply_block(block.count, panels_, V * kLanes, x, [=, this](int row, int channel, const Lanes* sums) {
      for (int v = 0; v < V && channel < width_; ++v, channel += kLanes) {
        Lanes y = sums[v] + bias_[channel / kLanes];
        lanes_at(to + int64_t(row) * width_, channel) = activate(activation_, y);
      }
    });
  }

 private:
  int width_;
  Activation activation_;
  Panels<V> panels_;
  std::vector<Lanes> bias_;
};

// Create a Dense stage with the panel size that leaves the fewest vectors empty.
inline std::unique_ptr<Stage> make_dense(const float* weight, const float* bias, int M, int K, Activation activation) {
  int vectors = padded(M) / kLanes;
  if (vectors % 4 == 0 || vectors > 12) return std::make_unique<Dense<4>>(weight, bias, M, K, activation);
  if (vectors % 2 == 0 || vectors > 4) return std::make_unique<Dense<2>>(weight, bias, M, K, activation);
  return std::make_unique<Dense<1>>(weight, bias, M, K, activation);
}

}  // namespace puffer
