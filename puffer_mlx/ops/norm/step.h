// RMSNorm of a residual sum, as a stage of the C++ actor (`add_rms_norm` in training: norm.h).

#pragma once

#include "ops/cpu/binding.h"
#include "ops/cpu/stages.h"
#include "ops/norm/equations.h"

namespace puffer {

// Stage y = weight (x + residual) / sqrt(mean((x + residual)^2) + epsilon), where residual is the network's input.
class ResidualNorm : public Stage {
 public:
  ResidualNorm(const float* weight, int H, float epsilon) : H_(H), epsilon_(epsilon), weight_(pad(weight, 1, H)) {}

  void run(const Block& block, Features x, float* to) const override {
    int width = padded(H_);
    for (int row = 0; row < block.count; ++row) {
      const float* residual = block.network_input + int64_t(row) * width;
      float* y = to + int64_t(row) * width;
      Lanes squares = {};
      for (int h = 0; h < width; h += kLanes) {
        Lanes sum = lanes_at(x[row], h) + lanes_at(residual, h);
        lanes_at(y, h) = sum;
        squares += sum * sum;
      }
      float scale = inverse_rms(sum_of_lanes(squares), H_, epsilon_);
      for (int h = 0; h < width; h += kLanes) lanes_at(y, h) *= scale * weight_[h / kLanes];
    }
  }

 private:
  int H_;
  float epsilon_;
  std::vector<Lanes> weight_;
};

STAGE(residual_norm, ResidualNorm, const float*, int, float);

}  // namespace puffer
