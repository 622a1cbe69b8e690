// A MinGRU layer for acting on CPUs: computes one step of a block of agents and updates their states. Equations: cell.h.

#pragma once

#include "ops/cpu/binding.h"
#include "ops/cpu/stages.h"
#include "policy/networks/mingru/cell.h"

namespace puffer {

// MinGRU layer with the state s.
class MinGRULayer : public Stage {
 public:
  // weight (3H, H); state: index of s in the list of the rollout's states.
  MinGRULayer(const float* weight, int H, int state) : H_(H), state_(state), panels_(pack_gates<3>(weight, H, H)) {}

  void run(const Block& block, Features x, float* to) const override {
    auto finish = [=, this, &block](int row, int channel, const Lanes* sums) {
      Channels at(channel, H_);
      float* state = block.state(state_, row, H_);
      Lanes before = block.not_done[row] * at.load(state), in = lanes_at(x[row], channel);
      auto cell = mingru_cell<Lanes>(sums[0], sums[1], sums[2], in, before);
      at.store(state, cell.state);
      lanes_at(to + int64_t(row) * padded(H_), channel) = cell.out;
    };
    multiply_block(block.count, panels_, kLanes, x, finish);
  }

 private:
  int H_, state_;
  Panels<3> panels_;
};

STAGE(mingru, MinGRULayer, const float*, int, int);

}  // namespace puffer
