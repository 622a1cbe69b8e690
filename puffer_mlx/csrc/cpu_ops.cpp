// CPU operations as nodes of MLX's lazy graph: the MinGRU recurrence with its gates, forward and backward, in one pass
// over memory each; a gather of segments; linear layers. `cpu_ops.py` builds and loads this file.
//
// Shapes: T steps, S segments (rows), H channels; everything float32, C-contiguous and time-major.
// Each operation splits its rows into parts, which a small pool of threads takes one after the other. What a part is and
// in which order sums are taken depends on sizes alone, so results don't depend on the number of threads.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace nb = nanobind;
namespace mx = mlx::core;
using namespace nb::literals;

namespace {

// ---- threads -------------------------------------------------------------------------------------------------------

// Runs `work(part)` for part = 0 .. parts - 1, the caller taking its share. One batch at a time.
class Pool {
 public:
  static Pool& shared() {
    static Pool* pool = new Pool();  // never destroyed: workers may outlive static destructors
    return *pool;
  }

  void resize(int threads) {
    std::lock_guard<std::mutex> use(use_);
    threads_ = std::max(1, threads);
    while (static_cast<int>(workers_.size()) < threads_ - 1) {
      workers_.emplace_back([this] { loop(); });
      workers_.back().detach();
    }
  }

  int threads() const { return threads_; }

  void run(int parts, const std::function<void(int)>& work) {
    if (parts == 1 || threads_ == 1) {
      for (int part = 0; part < parts; ++part) work(part);
      return;
    }
    std::lock_guard<std::mutex> use(use_);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      work_ = &work;
      parts_ = parts;
      next_ = 0;
      unfinished_ = parts;
    }
    wake_.notify_all();
    std::unique_lock<std::mutex> lock(mutex_);
    drain(lock);
    done_.wait(lock, [this] { return unfinished_ == 0; });
    work_ = nullptr;
  }

 private:
  void loop() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return work_ != nullptr && next_ < parts_; });
      drain(lock);
    }
  }

  void drain(std::unique_lock<std::mutex>& lock) {  // takes parts until none is left
    while (work_ != nullptr && next_ < parts_) {
      int part = next_++;
      auto* work = work_;
      lock.unlock();
      (*work)(part);
      lock.lock();
      if (--unfinished_ == 0) done_.notify_all();
    }
  }

  std::mutex use_, mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> workers_;
  const std::function<void(int)>* work_ = nullptr;
  int threads_ = 1, parts_ = 0, next_ = 0, unfinished_ = 0;
};

// Splits rows [0, n) of T steps each into parts and calls work(first row, last row + 1). About 16 parts, so that a busy
// core costs little, but none with less than 512 steps: waking a thread takes longer than those.
void over_rows(int n, int T, const std::function<void(int, int)>& work) {
  int rows = std::max({1, n / 16, 512 / T}), parts = (n + rows - 1) / rows;
  Pool::shared().run(parts, [&](int part) { work(part * rows, std::min(n, (part + 1) * rows)); });
}

// ---- arithmetic ----------------------------------------------------------------------------------------------------

// Logistic function from a rational tanh (absolute error 4e-7): arithmetic only, so that compilers vectorise it.
inline float logistic(float v) {
  float x = 0.5f * v;
  x = x < 7.9053111f ? x : 7.9053111f;
  x = x > -7.9053111f ? x : -7.9053111f;
  float s = x * x;
  float p = -8.60467152213735e-11f + s * (2.00018790482477e-13f - s * 2.76076847742355e-16f);
  p = 1.48572235717979e-05f + s * (5.12229709037114e-08f + s * p);
  p = x * (4.89352455891786e-03f + s * (6.37261928875436e-04f + s * p));
  float q = 1.18534705686654e-04f + s * 1.19825839466702e-06f;
  q = 4.89352518554385e-03f + s * (2.26843463243900e-03f + s * q);
  return 0.5f * (p / q) + 0.5f;
}

// One step of one row: u = [hidden | gate | projection], each H wide.
inline void cell(int H, const float* __restrict u, const float* __restrict x, const float* __restrict before,
                 float* __restrict out, float* __restrict state) {
  for (int h = 0; h < H; ++h) {
    float z = logistic(u[H + h]), q = logistic(u[2 * H + h]);
    float negative = logistic(u[h]);
    float g = u[h] >= 0.0f ? u[h] + 0.5f : negative;
    float s = before[h] + z * (g - before[h]);
    state[h] = s;
    out[h] = x[h] + q * (s - x[h]);
  }
}

// Gradient of `cell`; `carry` enters as dL/dstate from the next step and leaves as dL/dbefore.
inline void cell_gradient(int H, const float* __restrict u, const float* __restrict x, const float* __restrict before,
                          const float* __restrict state, const float* __restrict dout, float* __restrict carry,
                          float* __restrict du, float* __restrict dx) {
  for (int h = 0; h < H; ++h) {
    float z = logistic(u[H + h]), q = logistic(u[2 * H + h]);
    float negative = logistic(u[h]);
    bool positive = u[h] >= 0.0f;
    float g = positive ? u[h] + 0.5f : negative;
    float slope = positive ? 1.0f : negative * (1.0f - negative);
    float ds = carry[h] + dout[h] * q;
    du[h] = ds * z * slope;
    du[H + h] = ds * (g - before[h]) * z * (1.0f - z);
    du[2 * H + h] = dout[h] * (state[h] - x[h]) * q * (1.0f - q);
    dx[h] = dout[h] * (1.0f - q);
    carry[h] = ds * (1.0f - z);
  }
}

using Buffers = std::vector<const void*>;
using Outputs = std::vector<void*>;

// u (T, S, 3H), x (T, S, H), first (S, H) -> out (T, S, H), states (T, S, H)
void mingru_forward(int T, int S, int H, const Buffers& in, const Outputs& to) {
  auto u = static_cast<const float*>(in[0]), x = static_cast<const float*>(in[1]);
  auto first = static_cast<const float*>(in[2]);
  auto out = static_cast<float*>(to[0]), states = static_cast<float*>(to[1]);
  over_rows(S, T, [=](int begin, int end) {
    for (int t = 0; t < T; ++t) {
      for (int s = begin; s < end; ++s) {
        int64_t k = int64_t(t) * S + s;
        const float* before = t ? states + (k - S) * H : first + int64_t(s) * H;
        cell(H, u + k * 3 * H, x + k * H, before, out + k * H, states + k * H);
      }
    }
  });
}

// u, x, first, states, dout (T, S, H) -> du (T, S, 3H), dx (T, S, H), dfirst (S, H)
void mingru_backward(int T, int S, int H, const Buffers& in, const Outputs& to) {
  auto u = static_cast<const float*>(in[0]), x = static_cast<const float*>(in[1]);
  auto first = static_cast<const float*>(in[2]), states = static_cast<const float*>(in[3]);
  auto dout = static_cast<const float*>(in[4]);
  auto du = static_cast<float*>(to[0]), dx = static_cast<float*>(to[1]), dfirst = static_cast<float*>(to[2]);
  over_rows(S, T, [=](int begin, int end) {
    std::memset(dfirst + int64_t(begin) * H, 0, sizeof(float) * int64_t(end - begin) * H);
    for (int t = T - 1; t >= 0; --t) {
      for (int s = begin; s < end; ++s) {
        int64_t k = int64_t(t) * S + s;
        const float* before = t ? states + (k - S) * H : first + int64_t(s) * H;
        cell_gradient(H, u + k * 3 * H, x + k * H, before, states + k * H, dout + k * H, dfirst + int64_t(s) * H,
                      du + k * 3 * H, dx + k * H);
      }
    }
  });
}

// ---- graph nodes ---------------------------------------------------------------------------------------------------

// A node that calls `kernel` on the CPU stream with its inputs' and outputs' memory.
class Call : public mx::Primitive {
 public:
  using Kernel = std::function<void(const Buffers&, const Outputs&)>;
  Call(mx::Stream stream, const char* name, Kernel kernel) : mx::Primitive(stream), name_(name), kernel_(kernel) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    Buffers in;
    Outputs to;
    for (auto& input : inputs) {
      encoder.set_input_array(input);
      in.push_back(input.data<char>());
    }
    for (auto& output : outputs) {
      output.set_data(mx::allocator::malloc(output.nbytes()));
      encoder.set_output_array(output);
      to.push_back(output.data<char>());
    }
    encoder.dispatch([kernel = kernel_, in = std::move(in), to = std::move(to)] { kernel(in, to); });
  }

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("[cpu_ops] these operations run on a CPU stream only");
  }

  const char* name() const override { return name_; }

 private:
  const char* name_;
  Kernel kernel_;
};

std::vector<mx::array> call(const char* name, Call::Kernel kernel, std::vector<mx::array> inputs,
                            std::vector<mx::Shape> shapes, const std::vector<mx::Dtype>& dtypes) {
  auto stream = mx::default_stream(mx::Device::cpu);
  for (auto& input : inputs) input = mx::contiguous(input, false, stream);
  return mx::array::make_arrays(std::move(shapes), dtypes, std::make_shared<Call>(stream, name, std::move(kernel)),
                                inputs);
}

void expect(bool right, const char* what) {
  if (!right) throw std::invalid_argument(what);
}

void expect_layer(const mx::array& u, const mx::array& x, const mx::array& first) {
  expect(x.ndim() == 3 && u.ndim() == 3 && first.ndim() == 2, "mingru: u (T, S, 3H), x (T, S, H), first (S, H)");
  expect(u.shape(0) == x.shape(0) && u.shape(1) == x.shape(1) && u.shape(2) == 3 * x.shape(2) &&
             first.shape(0) == x.shape(1) && first.shape(1) == x.shape(2),
         "mingru: shapes of u (T, S, 3H), x (T, S, H), first (S, H) don't agree");
  for (auto* a : {&u, &x, &first}) expect(a->dtype() == mx::float32, "mingru: arrays must be float32");
}

std::vector<mx::array> forward(const mx::array& u, const mx::array& x, const mx::array& first) {
  expect_layer(u, x, first);
  int T = x.shape(0), S = x.shape(1), H = x.shape(2);
  return call(
      "MinGRU", [=](const Buffers& in, const Outputs& to) { mingru_forward(T, S, H, in, to); }, {u, x, first},
      {x.shape(), x.shape()}, {mx::float32, mx::float32});
}

std::vector<mx::array> backward(const mx::array& u, const mx::array& x, const mx::array& first,
                                const mx::array& states, const mx::array& dout) {
  expect_layer(u, x, first);
  expect(states.shape() == x.shape() && dout.shape() == x.shape(), "mingru: states and dout must be (T, S, H)");
  expect(states.dtype() == mx::float32 && dout.dtype() == mx::float32, "mingru: arrays must be float32");
  int T = x.shape(0), S = x.shape(1), H = x.shape(2);
  return call(
      "MinGRUGradient", [=](const Buffers& in, const Outputs& to) { mingru_backward(T, S, H, in, to); },
      {u, x, first, states, dout}, {u.shape(), x.shape(), first.shape()}, {mx::float32, mx::float32, mx::float32});
}

// source (at least T, N, ...), rows (S,) int32 -> (T, S, ...); a row outside [0, N) reads row 0 or N - 1.
mx::array take_rows(const mx::array& source, const mx::array& rows, int T) {
  expect(source.ndim() >= 2 && rows.ndim() == 1, "take_rows: source (T, N, ...), rows (S,)");
  expect(rows.dtype() == mx::int32, "take_rows: rows must be int32");
  expect(T >= 1 && T <= source.shape(0) && source.shape(1) >= 1, "take_rows: source has too few steps or no rows");
  int N = source.shape(1), S = rows.shape(0);
  size_t bytes = source.nbytes() / (size_t(source.shape(0)) * N);
  auto shape = source.shape();
  shape[0] = T;
  shape[1] = S;
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    auto from = static_cast<const char*>(in[0]);
    auto index = static_cast<const int32_t*>(in[1]);
    auto out = static_cast<char*>(to[0]);
    over_rows(S, T, [=](int begin, int end) {
      for (int t = 0; t < T; ++t) {
        for (int s = begin; s < end; ++s) {
          int64_t row = std::clamp(index[s], 0, N - 1);
          std::memcpy(out + (int64_t(t) * S + s) * bytes, from + (int64_t(t) * N + row) * bytes, bytes);
        }
      }
    });
  };
  return call("TakeRows", kernel, {source, rows}, {shape}, {source.dtype()})[0];
}

// adv[T-1] = 0, adv[t] = delta[t] + decay[t] * adv[t+1]; delta, decay (T - 1, N) -> (T, N)
mx::array discount(const mx::array& delta, const mx::array& decay) {
  expect(delta.ndim() == 2 && delta.shape() == decay.shape(), "discount: delta and decay must be (T - 1, N)");
  expect(delta.dtype() == mx::float32 && decay.dtype() == mx::float32, "discount: arrays must be float32");
  int T = delta.shape(0) + 1, N = delta.shape(1);
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    auto d = static_cast<const float*>(in[0]), k = static_cast<const float*>(in[1]);
    auto adv = static_cast<float*>(to[0]);
    std::memset(adv + int64_t(T - 1) * N, 0, sizeof(float) * N);
    for (int64_t i = int64_t(T - 1) * N - 1; i >= 0; --i) adv[i] = d[i] + k[i] * adv[i + N];
  };
  return call("Discount", kernel, {delta, decay}, {{T, N}}, {mx::float32})[0];
}

// ---- linear layers -------------------------------------------------------------------------------------------------
// y = x W^T with x (n, K), W (M, K) and y (n, M), or y (M, n) if `columns`. A BLAS that threads itself waits busily for
// its own threads, which on a shared machine costs several times the work; here it computes one part at a time.

using Gemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a,
                      int lda, const float* b, int ldb, float beta, float* c, int ldc);
Gemm gemm = nullptr;
constexpr int kRowMajor = 101, kAsIs = 111, kTransposed = 112;

mx::array linear(const mx::array& x, const mx::array& weight, bool columns) {
  expect(x.ndim() == 2 && weight.ndim() == 2 && x.shape(1) == weight.shape(1), "linear: x (n, K), weight (M, K)");
  expect(x.dtype() == mx::float32 && weight.dtype() == mx::float32, "linear: arrays must be float32");
  int n = x.shape(0), K = x.shape(1), M = weight.shape(0);
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    auto a = static_cast<const float*>(in[0]), w = static_cast<const float*>(in[1]);
    auto y = static_cast<float*>(to[0]);
    over_rows(n, 1, [=](int begin, int end) {
      auto rows = a + int64_t(begin) * K;
      if (columns)
        gemm(kRowMajor, kAsIs, kTransposed, M, end - begin, K, 1, w, K, rows, K, 0, y + begin, n);
      else
        gemm(kRowMajor, kAsIs, kTransposed, end - begin, M, K, 1, rows, K, w, K, 0, y + int64_t(begin) * M, M);
    });
  };
  return call("Linear", kernel, {x, weight}, {columns ? mx::Shape{M, n} : mx::Shape{n, M}}, {mx::float32})[0];
}

// dx (n, K) = dy W, plus `add` (n, K) where given
mx::array linear_input_gradient(const mx::array& dy, const mx::array& weight, bool columns,
                                const std::optional<mx::array>& add) {
  int n = dy.shape(columns ? 1 : 0), M = weight.shape(0), K = weight.shape(1);
  expect(dy.ndim() == 2 && dy.shape(columns ? 0 : 1) == M, "linear: dy and weight don't agree");
  expect(!add || (add->shape() == mx::Shape{n, K}), "linear: what is added must be (n, K)");
  auto kernel = [=, adds = add.has_value()](const Buffers& in, const Outputs& to) {
    auto d = static_cast<const float*>(in[0]), w = static_cast<const float*>(in[1]);
    auto from = adds ? static_cast<const float*>(in[2]) : nullptr;
    auto dx = static_cast<float*>(to[0]);
    over_rows(n, 1, [=](int begin, int end) {
      int rows = end - begin;
      auto out = dx + int64_t(begin) * K;
      if (adds) std::memcpy(out, from + int64_t(begin) * K, sizeof(float) * rows * K);
      float beta = adds ? 1 : 0;
      if (columns)
        gemm(kRowMajor, kTransposed, kAsIs, rows, K, M, 1, d + begin, n, w, K, beta, out, K);
      else
        gemm(kRowMajor, kAsIs, kAsIs, rows, K, M, 1, d + int64_t(begin) * M, M, w, K, beta, out, K);
    });
  };
  std::vector<mx::array> inputs{dy, weight};
  if (add) inputs.push_back(*add);
  return call("LinearInputGradient", kernel, inputs, {mx::Shape{n, K}}, {mx::float32})[0];
}

// dW (M, K) = dy^T x: partial sums of runs of rows, added in order
mx::array linear_weight_gradient(const mx::array& dy, const mx::array& x, bool columns) {
  int n = x.shape(0), K = x.shape(1), M = dy.shape(columns ? 0 : 1);
  expect(dy.ndim() == 2 && dy.shape(columns ? 1 : 0) == n, "linear: dy and x don't agree");
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    auto d = static_cast<const float*>(in[0]), a = static_cast<const float*>(in[1]);
    auto dw = static_cast<float*>(to[0]);
    int rows = std::max(n / 16, 1024), parts = (n + rows - 1) / rows;
    std::vector<float> partial(size_t(parts) * M * K);
    Pool::shared().run(parts, [&](int part) {
      int begin = part * rows, count = std::min(n - begin, rows);
      float* out = partial.data() + size_t(part) * M * K;
      if (columns)
        gemm(kRowMajor, kAsIs, kAsIs, M, K, count, 1, d + begin, n, a + int64_t(begin) * K, K, 0, out, K);
      else
        gemm(kRowMajor, kTransposed, kAsIs, M, K, count, 1, d + int64_t(begin) * M, M, a + int64_t(begin) * K, K, 0,
             out, K);
    });
    std::memset(dw, 0, sizeof(float) * M * K);
    for (int part = 0; part < parts; ++part) {
      const float* from = partial.data() + size_t(part) * M * K;
      for (int i = 0; i < M * K; ++i) dw[i] += from[i];
    }
  };
  return call("LinearWeightGradient", kernel, {dy, x}, {mx::Shape{M, K}}, {mx::float32})[0];
}

}  // namespace

NB_MODULE(cpu_ops, m) {
  m.def("mingru_forward", &forward, "u"_a, "x"_a, "first"_a);
  m.def("mingru_backward", &backward, "u"_a, "x"_a, "first"_a, "states"_a, "dout"_a);
  m.def("take_rows", &take_rows, "source"_a, "rows"_a, "steps"_a);
  m.def("discount", &discount, "delta"_a, "decay"_a);
  m.def("linear", &linear, "x"_a, "weight"_a, "columns"_a);
  m.def("linear_input_gradient", &linear_input_gradient, "dy"_a, "weight"_a, "columns"_a, "add"_a = nb::none());
  m.def("linear_weight_gradient", &linear_weight_gradient, "dy"_a, "x"_a, "columns"_a);
  m.def("set_threads", [](int n) { Pool::shared().resize(n); }, "threads"_a);
  m.def("set_gemm", [](uintptr_t address) { gemm = reinterpret_cast<Gemm>(address); }, "address"_a);
  m.def("has_gemm", [] { return gemm != nullptr; });
}
