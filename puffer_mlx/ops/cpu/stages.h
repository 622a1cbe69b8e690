// The layers of a policy for one step of a block of agents, without MLX. What a layer does with a product follows while
// the sums are in registers; a block's features stay in the cache nearest to the core from the first layer to the last.
//
// Results of one agent don't depend on which others are in its block: every sum runs over one row, in a fixed order.

#pragma once

#include "arithmetic.h"
#include "ops/cpu/activations.h"
#include "product.h"

namespace puffer {

constexpr int kBlock = 64;  // agents that go through the layers together

// Floats of a row that is stored in whole vectors; what is behind its last channel is 0.
constexpr int padded(int width) { return (width + kLanes - 1) / kLanes * kLanes; }

// A whole vector of a row of this actor's own memory.
typedef float OwnLanes __attribute__((vector_size(sizeof(float) * kLanes), may_alias));

inline OwnLanes& lanes_at(float* row, int channel) { return *reinterpret_cast<OwnLanes*>(row + channel); }
inline Lanes lanes_at(const float* row, int channel) { return *reinterpret_cast<const OwnLanes*>(row + channel); }

// Features of a block's agents, one row each.
struct Features {
  const float* rows;
  int64_t stride;

  const float* operator[](int row) const { return rows + row * stride; }
};

// One step of some agents.
struct Block {
  int64_t first;               // among all agents
  int count;                   // at most kBlock
  const float* keep;           // (count,), what their states are multiplied by first
  float* const* states;        // (N, H) each
  const float* network_input;  // (count, padded(H)), what the first layer behind the encoder gets
  float* work;                 // room for Stage::work() floats

  float* state(int which, int row, int H) const { return states[which] + (first + row) * H; }
};

// From features to features.
class Stage {
 public:
  virtual ~Stage() = default;

  // `to` is (block.count, padded(width)).
  virtual void run(const Block& block, Features x, float* to) const = 0;

  virtual size_t work() const { return 0; }
};

// Each panel on its own: it stays in cache while a block's rows pass by.
template <int V>
using Panels = std::vector<Packed<V>>;

// Columns are the rows of `weight` (M, K).
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

// The same of `weight` (V H, K), its V parts side by side: a panel holds kLanes channels of each part.
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

// `parts` vectors of `width` floats each with zeros behind; all zeros if `from` is null.
inline std::vector<Lanes> pad(const float* from, int parts, int width) {
  std::vector<Lanes> to(size_t(parts) * padded(width) / kLanes);
  for (int part = 0; from && part < parts; ++part)
    std::copy_n(from + int64_t(part) * width, width, reinterpret_cast<float*>(to.data()) + part * padded(width));
  return to;
}

// For each row of x and each panel: epilogue(row, the panel's first channel, its V vectors of sums). Panels are `step`
// channels apart.
template <int V, class Epilogue>
inline void multiply_block(int count, const Panels<V>& panels, int step, Features x, Epilogue epilogue) {
  for (size_t p = 0; p < panels.size(); ++p) {
    int channel = int(p) * step;
    auto finish = [&, channel](int row, int, const Lanes* sums) { epilogue(row, channel, sums); };
    multiply_rows(0, count, panels[p], panels[p].depth, [=](int row) { return x[row]; }, finish);
  }
}

// y = W x + b, and an activation of that.
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

// With as many vectors in a panel as leave the fewest empty.
inline std::unique_ptr<Stage> make_dense(const float* weight, const float* bias, int M, int K, Activation activation) {
  int vectors = padded(M) / kLanes;
  if (vectors % 4 == 0 || vectors > 12) return std::make_unique<Dense<4>>(weight, bias, M, K, activation);
  if (vectors % 2 == 0 || vectors > 4) return std::make_unique<Dense<2>>(weight, bias, M, K, activation);
  return std::make_unique<Dense<1>>(weight, bias, M, K, activation);
}

}  // namespace puffer
