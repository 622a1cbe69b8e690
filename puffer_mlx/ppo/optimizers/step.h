// Functions that the optimizers' steps in C++ share: check the inputs, and clip by the gradients' global norm.

#pragma once

#include "ops/cpu/arithmetic.h"
#include "ops/cpu/node.h"
#include "ops/norm/norm.h"
#include "ppo/optimizers/equations.h"

namespace puffer {

// Return the sum of squares of a tensor. Runs of 4096 elements are summed in float32, and the runs' sums in double.
inline double sum_of_squares(const float* x, int64_t size) {
  constexpr int64_t kRun = 4096;
  double total = 0;
  for (int64_t run = 0; run < size; run += kRun) {
    int count = static_cast<int>(std::min(kRun, size - run));
    Lanes squares = {};
    for (int i = 0; i < count; i += kLanes) {
      Lanes lanes = Channels(i, count).load(x + run);
      squares += lanes * lanes;
    }
    total += sum_of_lanes(squares);
  }
  return total;
}

inline Clip clip_of(double sum_of_squares, float loss, float max_norm) {
  return clip_by(static_cast<float>(std::sqrt(sum_of_squares)), loss, max_norm);
}

// Check the inputs of an optimizer's step, all float32, and return them in one list: trees, each with the shapes of the first tree
// (the weights), then scalars.
inline Arrays step_inputs(const std::string& step, const std::vector<Arrays>& trees, const Arrays& scalars) {
  auto number = step + ": weights, gradients and state differ in number";
  Arrays inputs;
  for (auto& tree : trees) {
    expect(tree.size() == trees[0].size(), number.c_str());
    for (size_t i = 0; i < tree.size(); ++i) expect_shapes(step, {{tree[i], trees[0][i].shape()}});
    inputs.insert(inputs.end(), tree.begin(), tree.end());
  }
  for (auto& one : scalars) expect_shapes(step, {{one, {}}});
  inputs.insert(inputs.end(), scalars.begin(), scalars.end());
  return inputs;
}

// Return the shapes of the results of an optimizer's step: `trees` copies of the weights' shapes, then scalars.
inline std::vector<mx::Shape> step_shapes(const Arrays& weights, int trees, int scalars) {
  std::vector<mx::Shape> shapes;
  for (int tree = 0; tree < trees; ++tree)
    for (auto& weight : weights) shapes.push_back(weight.shape());
  shapes.resize(shapes.size() + scalars);
  return shapes;
}

}  // namespace puffer
