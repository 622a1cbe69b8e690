// Forward and backward pass of a network without recurrent state: linear layers with activations, then linear heads.

#pragma once

#include <array>

#include "ops/cpu/activations.h"
#include "ops/cpu/elements.h"
#include "ops/linear/linear.h"

namespace puffer {

using LayerSpec = std::array<int, 5>;  // fields of a Layer or a Head, as Python passes them

// A linear layer with an activation. weight, bias: indices among the policy's tensors; bias is -1 for a layer without bias.
struct Layer {
  int weight, bias, inputs, width;
  Activation activation;
};

// A linear output layer. Rows [row, row + count) of a weight compute the outputs [column, column + count).
struct Head {
  int weight, bias, row, count, column;
};

// Pointers to the policy's tensors and to the tensors' gradients. Gradients of unused tensors are 0.
struct Tensors {
  std::vector<float*> at, gradients;
};

class Tower {
 public:
  // outputs: number of outputs of all towers together. samples: largest number n of samples.
  Tower(const std::vector<LayerSpec>& layers, const std::vector<LayerSpec>& heads, int outputs, int samples) : outputs_(outputs) {
    for (auto [weight, bias, inputs, width, kind] : layers)
      layers_.push_back({weight, bias, inputs, width, static_cast<Activation>(kind)});
    for (auto [weight, bias, row, count, column] : heads) heads_.push_back({weight, bias, row, count, column});
    size_t widest = 0;
    for (auto& layer : layers_) {
      size_t size = size_t(samples) * layer.width;
      before_.emplace_back(size);
      after_.emplace_back(size);
      widest = std::max(widest, size);
    }
    gradient_.resize(widest);
    below_.resize(widest);
  }

  // Compute the forward pass of a tower (layers and heads) for n samples x (n, inputs), and write the heads' columns of y (n,
  // outputs).
  void forward(const Tensors& tensors, const float* x, int n, float* y) {
    for (size_t l = 0; l < layers_.size(); ++l) {
      auto& layer = layers_[l];
      product(tensors, layer.weight, 0, layer.bias, x, n, layer.inputs, layer.width, before_[l].data(), layer.width);
      float *z = before_[l].data(), *a = after_[l].data();
      each_of(0, int64_t(n) * layer.width,
               [&](int64_t i, Channels at) { at.store(a + i, activate(layer.activation, at.load(z + i))); });
      x = a;
    }
    int width = layers_.back().width;
    for (auto& head : heads_)
      product(tensors, head.weight, head.row, head.bias, x, n, width, head.count, y + head.column, outputs_);
  }

  // Compute the loss's gradients with respect to the weights and biases of a tower (layers and heads), and store them in
  // tensors.gradients. x: input of the previous `forward`. dy (n, outputs): gradients of the loss with respect to the outputs.
  void backward(const Tensors& tensors, const float* x, int n, const float* dy) {
    int width = layers_.back().width;
    const float* features = after_.back().data();
    float beta = 0;
    for (auto& head : heads_) {
      auto d = dy + head.column;
      weight_gradient(tensors, head.weight, head.row, head.bias, d, outputs_, features, n, width, head.count);
      auto weight = tensors.at[head.weight] + int64_t(head.row) * width;
      gemm(kRowMajor, kAsIs, kAsIs, n, width, head.count, 1, d, outputs_, weight, width, beta, gradient_.data(), width);
      beta = 1;
    }
    for (int l = int(layers_.size()) - 1; l >= 0; --l) {
      auto& layer = layers_[l];
      float *z = before_[l].data(), *a = after_[l].data(), *d = gradient_.data();
      if (layer.activation != Activation::kNone)
        each_of(0, int64_t(n) * layer.width, [&](int64_t i, Channels at) {
          at.store(d + i, at.load(d + i) * slope(layer.activation, at.load(z + i), at.load(a + i)));
        });
      auto input = l > 0 ? after_[l - 1].data() : x;
      weight_gradient(tensors, layer.weight, 0, layer.bias, d, layer.width, input, n, layer.inputs, layer.width);
      if (l == 0) break;
      gemm(kRowMajor, kAsIs, kAsIs, n, layer.inputs, layer.width, 1, d, layer.width, tensors.at[layer.weight],
           layer.inputs, 0, below_.data(), layer.inputs);
      std::swap(gradient_, below_);
    }
  }

 private:
  // Compute a dense layer or head: y (n, M) = x (n, K) W^T + b. W: M rows of a weight, starting at `row`. Rows of y are `stride`
  // elements apart.
  static void product(const Tensors& tensors, int weight, int row, int bias, const float* x, int n, int K, int M,
                      float* y, int stride) {
    for (int i = 0; bias >= 0 && i < n; ++i)
      std::memcpy(y + int64_t(i) * stride, tensors.at[bias], sizeof(float) * M);
    gemm(kRowMajor, kAsIs, kTransposed, n, M, K, 1, x, K, tensors.at[weight] + int64_t(row) * K, K, bias >= 0 ? 1 : 0,
         y, stride);
  }

  // Compute the gradients of a dense layer or head with respect to its weight W and bias b. dy (n, M): gradients with respect to
  // its outputs, with rows `stride` elements apart.
  static void weight_gradient(const Tensors& tensors, int weight, int row, int bias, const float* dy, int stride,
                              const float* x, int n, int K, int M) {
    gemm(kRowMajor, kTransposed, kAsIs, M, K, n, 1, dy, stride, x, K, 0,
         tensors.gradients[weight] + int64_t(row) * K, K);
    if (bias < 0) return;
    auto db = tensors.gradients[bias];
    std::memset(db, 0, sizeof(float) * M);
    for (int i = 0; i < n; ++i)
      for (int m = 0; m < M; ++m) db[m] += dy[int64_t(i) * stride + m];
  }

  std::vector<Layer> layers_;
  std::vector<Head> heads_;
  int outputs_;
  std::vector<std::vector<float>> before_, after_;  // outputs of each layer before and after its activation
  std::vector<float> gradient_, below_;             // gradients with respect to a layer's output and its input
};

}  // namespace puffer
