// An LSTM layer for acting on CPUs: computes one step of a block of agents and updates their states. Equations: cell.h.

#pragma once

#include "ops/cpu/binding.h"
#include "ops/cpu/stages.h"
#include "policy/networks/lstm/cell.h"

namespace puffer {

// LSTM layer with the states h (at index `state` in the list of the rollout's states) and c (at the next index).
class LSTMLayer : public Stage {
 public:
  // weight (4H, 2H): weights of the input, then of h; bias (4H,): sum of both biases.
  LSTMLayer(const float* weight, const float* bias, int H, int state)
      : H_(H), state_(state), panels_(pack_gates<4>(weight, H, 2 * H)), bias_(pad(bias, 4, H)) {}

  size_t work() const override { return size_t(kBlock) * 2 * H_; }

  void run(const Block& block, Features x, float* to) const override {
    for (int row = 0; row < block.count; ++row) {  // [x | not_done h]: a copy, because h changes during the product
      float* both = block.work + int64_t(row) * 2 * H_;
      const float* h = block.state(state_, row, H_);
      std::copy_n(x[row], H_, both);
      for (int i = 0; i < H_; ++i) both[H_ + i] = block.not_done[row] * h[i];
    }
    auto finish = [=, this, &block](int row, int channel, const Lanes* sums) {
      Channels at(channel, H_);
      const Lanes* bias = &bias_[channel / kLanes];
      int part = padded(H_) / kLanes;
      float* c = block.state(state_ + 1, row, H_);
      auto cell = lstm_cell<Lanes>(sums[0] + bias[0], sums[1] + bias[part], sums[2] + bias[2 * part],
                            sums[3] + bias[3 * part], block.not_done[row] * at.load(c));
      at.store(c, cell.c);
      at.store(block.state(state_, row, H_), cell.h);
      lanes_at(to + int64_t(row) * padded(H_), channel) = cell.h;
    };
    multiply_block(block.count, panels_, kLanes, Features{block.work, 2 * H_}, finish);
  }

 private:
  int H_, state_;
  Panels<4> panels_;
  std::vector<Lanes> bias_;
};

STAGE(lstm, LSTMLayer, const float*, const float*, int, int);

}  // namespace puffer
