// A GRU layer for acting on CPUs: computes one step of a block of agents and updates their states. Equations: cell.h.

#pragma once

#include "ops/cpu/binding.h"
#include "ops/cpu/stages.h"
#include "policy/networks/gru/cell.h"

namespace puffer {

// GRU layer with the state h.
class GRULayer : public Stage {
 public:
  // weight_ih, weight_hh (3H, H); biases (3H,); state: index of h in the list of the rollout's states.
  GRULayer(const float* weight_ih, const float* weight_hh, const float* bias_ih, const float* bias_hh, int H,
           int state)
      : H_(H),
        state_(state),
        weight_ih_(pack_gates<3>(weight_ih, H, H)),
        weight_hh_(pack_gates<3>(weight_hh, H, H)),
        bias_ih_(pad(bias_ih, 3, H)),
        bias_hh_(pad(bias_hh, 3, H)) {}

  size_t work() const override { return size_t(kBlock) * 3 * padded(H_); }

  void run(const Block& block, Features x, float* to) const override {
    int width = padded(H_), part = width / kLanes;
    float* gates = block.work;
    multiply_block(block.count, weight_ih_, kLanes, x, [=, this](int row, int channel, const Lanes* sums) {
      for (int v = 0; v < 3; ++v)
        lanes_at(gates + (int64_t(row) * 3 + v) * width, channel) = sums[v] + bias_ih_[v * part + channel / kLanes];
    });
    auto finish = [=, this, &block](int row, int channel, const Lanes* sums) {
      const Lanes* bias = &bias_hh_[channel / kLanes];
      const float* z = gates + int64_t(row) * 3 * width;
      float not_done = block.not_done[row];
      auto cell = gru_cell<Lanes>(lanes_at(z, channel) + not_done * sums[0] + bias[0],
                           lanes_at(z + width, channel) + not_done * sums[1] + bias[part],
                           lanes_at(z + 2 * width, channel), not_done * sums[2] + bias[2 * part],
                           not_done * Channels(channel, H_).load(block.state(state_, row, H_)));
      lanes_at(to + int64_t(row) * width, channel) = cell.h;
    };
    multiply_block(block.count, weight_hh_, kLanes, Features{block.state(state_, 0, H_), H_}, finish);
    for (int row = 0; row < block.count; ++row)  // after the products, which read the old states
      std::copy_n(to + int64_t(row) * width, H_, block.state(state_, row, H_));
  }

 private:
  int H_, state_;
  Panels<3> weight_ih_, weight_hh_;
  std::vector<Lanes> bias_ih_, bias_hh_;
};

STAGE(gru, GRULayer, const float*, const float*, const float*, const float*, int, int);

}  // namespace puffer
