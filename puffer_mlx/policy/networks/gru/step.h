// What remembers: recurrent layers for one step of a block of agents, whose states they replace. Symbols are those of
// mingru.h, lstm.h and gru.h.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "arithmetic.h"
#include "stages.h"

namespace puffer {

// State: s.
class MinGRULayer : public Stage {
 public:
  // weight (3H, H); the number of the state among the rollout's.
  MinGRULayer(const float* weight, int H, int state) : H_(H), state_(state), panels_(pack_gates<3>(weight, H, H)) {}

  void run(const Block& block, Features x, float* to) const override {
    auto finish = [=, this, &block](int row, int channel, const Lanes* sums) {
      Channels at(channel, H_);
      float* state = block.state(state_, row, H_);
      Lanes before = block.keep[row] * at.load(state), in = lanes_at(x[row], channel);
      Lanes z = logistic(sums[1]), q = logistic(sums[2]);
      Lanes g = sums[0] >= Lanes{} ? sums[0] + 0.5f : logistic(sums[0]);
      Lanes s = before + z * (g - before);
      at.store(state, s);
      lanes_at(to + int64_t(row) * padded(H_), channel) = in + q * (s - in);
    };
    multiply_block(block.count, panels_, kLanes, x, finish);
  }

 private:
  int H_, state_;
  Panels<3> panels_;
};

// States: h, and c behind it.
class LSTMLayer : public Stage {
 public:
  // Weights of the input and of h (4H, H), biases (4H,).
  LSTMLayer(const float* weight_ih, const float* weight_hh, const float* bias_ih, const float* bias_hh, int H,
            int state)
      : H_(H),
        state_(state),
        panels_(pack_gates<4>(beside(weight_ih, weight_hh, H).data(), H, 2 * H)),
        bias_(pad(sum(bias_ih, bias_hh, H).data(), 4, H)) {}

  size_t work() const override { return size_t(kBlock) * 2 * H_; }

  void run(const Block& block, Features x, float* to) const override {
    for (int row = 0; row < block.count; ++row) {  // [x | keep h], as h itself is replaced channel by channel
      float* both = block.work + int64_t(row) * 2 * H_;
      const float* h = block.state(state_, row, H_);
      std::copy_n(x[row], H_, both);
      for (int i = 0; i < H_; ++i) both[H_ + i] = block.keep[row] * h[i];
    }
    auto finish = [=, this, &block](int row, int channel, const Lanes* sums) {
      Channels at(channel, H_);
      const Lanes* bias = &bias_[channel / kLanes];
      int part = padded(H_) / kLanes;
      Lanes i = logistic(sums[0] + bias[0]), f = logistic(sums[1] + bias[part]);
      Lanes g = tanh(sums[2] + bias[2 * part]), o = logistic(sums[3] + bias[3 * part]);
      float* cell = block.state(state_ + 1, row, H_);
      Lanes c = f * (block.keep[row] * at.load(cell)) + i * g, h = o * tanh(c);
      at.store(cell, c);
      at.store(block.state(state_, row, H_), h);
      lanes_at(to + int64_t(row) * padded(H_), channel) = h;
    };
    multiply_block(block.count, panels_, kLanes, Features{block.work, 2 * H_}, finish);
  }

 private:
  // (4H, 2H): each row of the input's weight, and that of h's behind it.
  static std::vector<float> beside(const float* weight_ih, const float* weight_hh, int H) {
    std::vector<float> both(size_t(8) * H * H);
    for (int64_t row = 0; row < 4 * H; ++row) {
      std::copy_n(weight_ih + row * H, H, both.data() + row * 2 * H);
      std::copy_n(weight_hh + row * H, H, both.data() + row * 2 * H + H);
    }
    return both;
  }

  static std::vector<float> sum(const float* a, const float* b, int H) {
    std::vector<float> both(size_t(4) * H);
    for (int i = 0; i < 4 * H; ++i) both[i] = a[i] + b[i];
    return both;
  }

  int H_, state_;
  Panels<4> panels_;
  std::vector<Lanes> bias_;
};

// State: h.
class GRULayer : public Stage {
 public:
  // Weights of the input and of h (3H, H), biases (3H,).
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
      float keep = block.keep[row];
      Lanes r = logistic(lanes_at(z, channel) + keep * sums[0] + bias[0]);
      Lanes u = logistic(lanes_at(z + width, channel) + keep * sums[1] + bias[part]);
      Lanes n = tanh(lanes_at(z + 2 * width, channel) + r * (keep * sums[2] + bias[2 * part]));
      Lanes before = keep * Channels(channel, H_).load(block.state(state_, row, H_));
      lanes_at(to + int64_t(row) * width, channel) = n + u * (before - n);
    };
    multiply_block(block.count, weight_hh_, kLanes, Features{block.state(state_, 0, H_), H_}, finish);
    for (int row = 0; row < block.count; ++row)  // now that no product needs the states before
      std::copy_n(to + int64_t(row) * width, H_, block.state(state_, row, H_));
  }

 private:
  int H_, state_;
  Panels<3> weight_ih_, weight_hh_;
  std::vector<Lanes> bias_ih_, bias_hh_;
};

// y = w (x + i) / sqrt(mean((x + i)^2) + epsilon), with i the network's input: see norm.h.
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
      float total = 0;
      for (int i = 0; i < kLanes; ++i) total += squares[i];
      float scale = 1.0f / std::sqrt(total / H_ + epsilon_);
      for (int h = 0; h < width; h += kLanes) lanes_at(y, h) *= scale * weight_[h / kLanes];
    }
  }

 private:
  int H_;
  float epsilon_;
  std::vector<Lanes> weight_;
};

}  // namespace puffer
