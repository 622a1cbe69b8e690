// Nodes of MLX's lazy graph that call a C++ function with the memory of their inputs and outputs.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"
#include "stream_limits.h"
#include "threads.h"

namespace puffer {

namespace mx = mlx::core;

using Array = mx::array;
using Arrays = std::vector<mx::array>;
using Buffers = std::vector<const void*>;
using Outputs = std::vector<void*>;

// A node that calls `kernel` on its CPU stream. The stream's limits at the time of evaluation apply.
class Call : public mx::Primitive {
 public:
  using Kernel = std::function<void(const Buffers&, const Outputs&)>;

  // Output i reuses the memory of input donors[i] if the graph no longer needs that input. It gets new memory if donors[i] is -1 or
  // missing.
  Call(mx::Stream stream, const char* name, Kernel kernel, std::vector<int> donors)
      : mx::Primitive(stream), name_(name), kernel_(std::move(kernel)), donors_(std::move(donors)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    Buffers in;
    Outputs to;
    for (auto& input : inputs) {
      encoder.set_input_array(input);
      in.push_back(input.data<char>());
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      auto& output = outputs[i];
      int donor = i < donors_.size() ? donors_[i] : -1;
      if (donor >= 0 && inputs[donor].is_donatable() && inputs[donor].nbytes() == output.nbytes())
        output.copy_shared_buffer(inputs[donor]);
      else
        output.set_data(mx::allocator::malloc(output.nbytes()));
      encoder.set_output_array(output);
      to.push_back(output.data<char>());
    }
    auto& limits = StreamLimitTable::all().of(stream().index);
    int width = limits.num_threads ? limits.num_threads.load() : StreamLimitTable::all().default_num_threads();
    bool counted = limits.enter();
    encoder.dispatch([=, &limits, kernel = kernel_, in = std::move(in), to = std::move(to)] {
      StreamLimits::Leave leave(limits, counted);
      width_here = width;
      kernel(in, to);
    });
  }

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("[cpu_ops] these operations run on a CPU stream only");
  }

  const char* name() const override { return name_; }

 private:
  const char* name_;
  Kernel kernel_;
  std::vector<int> donors_;
};

// Add a node to the graph. Returns the arrays that `kernel` computes from the inputs, which it gets C-contiguous. dtypes: of the
// arrays; float32 by default.
inline std::vector<mx::array> call(const char* name, Call::Kernel kernel, std::vector<mx::array> inputs,
                                   std::vector<mx::Shape> shapes, std::vector<int> donors = {},
                                   std::vector<mx::Dtype> dtypes = {}) {
  auto stream = mx::default_stream(mx::Device::cpu);
  for (auto& input : inputs) input = mx::contiguous(input, false, stream);
  dtypes.resize(shapes.size(), mx::float32);
  auto node = std::make_shared<Call>(stream, name, std::move(kernel), std::move(donors));
  return mx::array::make_arrays(std::move(shapes), dtypes, node, inputs);
}

inline void expect(bool right, const char* what) {
  if (!right) throw std::invalid_argument(what);
}

// Throw unless the arrays are float32 and have these shapes.
inline void expect_shapes(const std::string& operation, const std::vector<std::pair<mx::array, mx::Shape>>& arrays) {
  for (auto& [array, shape] : arrays) {
    if (array.shape() == shape && array.dtype() == mx::float32) continue;
    std::string sizes;
    for (int size : shape) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
    throw std::invalid_argument(operation + ": shapes don't agree, or an array isn't float32: expected (" + sizes + ")");
  }
}

// Memory of input or output `i`, which is float32.
inline const float* floats(const Buffers& in, int i) { return static_cast<const float*>(in[i]); }
inline float* floats(const Outputs& to, int i) { return static_cast<float*>(to[i]); }

}  // namespace puffer
