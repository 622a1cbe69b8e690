#pragma once

#include "ops/cpu/binding.h"
#include "ops/cpu/stages.h"
#include "policy/networks/leaky/cell.h"

namespace puffer {

class LeakyLayer : public Stage {
 public:
  LeakyLayer(const float* gate, int H, int state) : H_(H), state_(state), panels_(pack_gates<1>(gate, H, H)) {}

  void run(const Block& block, Features x, float* to) const override {
    multiply_block(block.count, panels_, kLanes, x, [=, this, &block](int row, int channel, const Lanes* sums) {
      Channels at(channel, H_);
      float* state = block.state(state_, row, H_);
      Lanes s = leaky_cell<Lanes>(sums[0], lanes_at(x[row], channel), block.not_done[row] * at.load(state));
      at.store(state, s);
      lanes_at(to + int64_t(row) * padded(H_), channel) = s;
    });
  }

 private:
  int H_, state_;
  Panels<1> panels_;
};

STAGE(leaky, LeakyLayer, const float*, int, int);

}  // namespace puffer
