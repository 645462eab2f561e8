// Checks and times conv2d and max_pool2d on a GPU.
//
//   bench_conv_cuda           both
//   bench_conv_cuda --check   every direction, dtype and layout over a list of shapes, against the
//                             CPU in f64 on the same (rounded) inputs; each launch is made twice
//                             and its bits compared; ends non-zero if anything is off
//   bench_conv_cuda --time    the layers of a small CNN: a graph of 20 launches, median of 9
//   replays
//                             (warm: the same buffers each time)
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "core/launch.h"
#include "core/ops/conv2d.h"
#include "core/ops/max_pool2d.h"
#include "core/tensor.h"
#include "cuda/check.h"
#include "cuda/context.h"
#include "cuda/graph.h"

namespace gradus {
namespace {

using Values = std::vector<double>;

struct ConvShape {
  int64_t n, c, h, w, k;
  Window window;
  int64_t groups = 1;

  Shape x() const { return {n, c, h, w}; }
  Shape filter() const { return {k, c / groups, window.kernel[0], window.kernel[1]}; }
  Shape y() const { return {n, k, window.positions(0, h), window.positions(1, w)}; }
};

// Every path: direct, depthwise, implicit GEMM with each tile; odd extents and channel counts.
const ConvShape kChecked[] = {
    {2, 1, 9, 7, 8, {{3, 3}, {1, 1}, {1, 1}}},
    {2, 1, 28, 28, 32, {{3, 3}, {1, 1}, {1, 1}}},
    {2, 3, 15, 13, 64, {{3, 3}, {1, 1}, {1, 1}}},
    {2, 3, 17, 19, 6, {{7, 7}, {2, 2}, {3, 3}}},
    {1, 4, 5, 5, 5, {{1, 1}}},
    {2, 2, 11, 10, 7, {{2, 3}, {3, 2}, {1, 0}, {2, 1}}},
    {2, 32, 14, 14, 32, {{3, 3}, {1, 1}, {1, 1}}},
    {3, 32, 7, 9, 64, {{3, 3}, {1, 1}, {1, 1}}},
    {2, 64, 14, 14, 64, {{3, 3}, {1, 1}, {1, 1}}},
    {1, 64, 5, 3, 32, {{3, 3}, {1, 1}, {1, 1}}},
    {2, 8, 8, 8, 8, {{3, 3}}},
    {2, 5, 9, 8, 7, {{3, 3}, {1, 1}, {1, 1}}},
    {2, 6, 9, 11, 10, {{3, 2}, {2, 1}, {1, 2}}},
    {1, 33, 6, 6, 31, {{3, 3}, {1, 1}, {1, 1}}},
    {1, 34, 6, 6, 66, {{1, 1}}},
    {1, 36, 10, 10, 40, {{5, 5}, {1, 1}, {2, 2}}},
    {2, 16, 12, 12, 24, {{3, 3}, {2, 2}, {1, 1}}},
    {2, 16, 13, 11, 24, {{3, 3}, {2, 3}, {1, 0}}},
    {1, 16, 12, 12, 130, {{3, 3}, {2, 2}, {1, 1}}},
    {1, 8, 13, 13, 8, {{3, 3}, {4, 4}, {0, 0}}},
    {1, 8, 11, 11, 12, {{2, 2}, {3, 4}, {1, 1}}},
    {1, 8, 14, 15, 12, {{3, 3}, {1, 1}, {2, 3}, {2, 3}}},
    {1, 8, 14, 15, 12, {{3, 2}, {2, 3}, {2, 1}, {3, 2}}},
    {1, 8, 2, 2, 8, {{3, 3}, {1, 1}, {5, 6}}},
    {1, 8, 1, 2, 8, {{1, 3}, {1, 1}, {0, 4}}},
    {1, 8, 6, 6, 8, {{1, 1}, {3, 2}}},
    {4, 128, 1, 1, 96, {{1, 1}}},
    {1, 256, 4, 4, 160, {{1, 1}}},
    {2, 72, 6, 5, 136, {{3, 3}, {1, 1}, {1, 1}}},
    {1, 8, 40, 33, 200, {{3, 3}, {1, 1}, {1, 1}}},
    {1, 16, 70, 64, 64, {{1, 1}}},
    {2, 16, 8, 8, 16, {{3, 3}, {1, 1}, {1, 1}}, 2},
    {2, 16, 9, 8, 32, {{3, 3}, {2, 1}, {1, 1}}, 4},
    {2, 12, 7, 7, 18, {{3, 3}, {1, 1}, {1, 1}}, 6},
    {2, 30, 7, 6, 20, {{3, 3}, {2, 2}, {1, 1}}, 5},
    {1, 4, 3, 3, 16, {{1, 1}}, 2},
    {2, 8, 9, 9, 8, {{3, 3}, {1, 1}, {1, 1}}, 8},
    {2, 40, 9, 8, 40, {{3, 3}, {2, 2}, {1, 1}}, 40},
    {2, 6, 10, 9, 12, {{5, 3}, {1, 2}, {2, 1}}, 6},
    {1, 3, 12, 12, 24, {{3, 3}, {1, 1}, {1, 1}, {2, 2}}, 3},
    {1, 2, 1, 5, 2, {{1, 3}, {1, 2}, {0, 1}}, 2},
    {0, 8, 6, 6, 8, {{3, 3}, {1, 1}, {1, 1}}},
    {0, 1, 6, 6, 8, {{3, 3}, {1, 1}, {1, 1}}},
};

std::string to_string(const ConvShape& s) {
  const auto pair = [](const Pair& p) { return concat(p[0], "x", p[1]); };
  return concat(s.x(), " -> ", s.k, " kernel ", pair(s.window.kernel), " stride ",
                pair(s.window.stride), " padding ", pair(s.window.padding), " dilation ",
                pair(s.window.dilation), " groups ", s.groups);
}

Values random_values(int64_t count) {
  static std::mt19937 generator(17);
  std::normal_distribution<double> normal;
  Values values(static_cast<size_t>(count));
  for (double& value : values) value = normal(generator);
  return values;
}

// Uninitialised memory that holds NaN in every floating dtype.
Tensor poisoned(const Shape& shape, const TensorOptions& options) {
  Tensor result = Tensor::empty(shape, options);
  const std::vector<char> bytes(static_cast<size_t>(result.nbytes()), '\xFF');
  if (!bytes.empty()) copy_bytes(cuda(), result.raw().data, bytes.data(), bytes.size());
  return result;
}

// One mode of arithmetic: a dtype, and whether f32 may be rounded to TF32.
struct Mode {
  const char* name;
  DType dtype;
  bool tf32;
  double limit;  // largest error allowed, as a share of the largest value
};
const Mode kModes[] = {{"f32", DType::f32, false, 4e-6},
                       {"tf32", DType::f32, true, 2e-3},
                       {"f16", DType::f16, false, 1e-3},
                       {"bf16", DType::bf16, false, 8e-3},
                       {"f64", DType::f64, false, 1e-13}};

struct Failures {
  int count = 0;
  double worst = 0;  // error as a share of the limit
};

// Makes the launch twice on poisoned outputs and compares with `want`; returns the largest error as
// a share of the largest value.
template <class Launch>
void check_output(const char* what, const ConvShape& shape, const Mode& mode, MemoryFormat format,
                  const Tensor& want_tensor, const TensorOptions& options, Failures& failures,
                  const Launch& launch_into) {
  const Values want = want_tensor.to_vector<double>();
  Values got[2];
  for (Values& values : got) {
    Tensor out = poisoned(want_tensor.shape(), options);
    launch_into(out);
    values = out.to_vector<double>();
  }
  double error = 0, scale = 1e-300;
  for (size_t i = 0; i < want.size(); ++i) {
    scale = std::max(scale, std::abs(want[i]));
    const double difference = std::abs(got[0][i] - want[i]);
    error = difference <= error ? error : difference;  // NaN stays
  }
  const double share = error / scale;
  const bool repeats =
      want.empty() || std::memcmp(got[0].data(), got[1].data(), want.size() * sizeof(double)) == 0;
  if (!(share <= mode.limit) || !repeats) {
    ++failures.count;
    std::printf("FAILED %s %s %s %s: error %.3g of the largest value, limit %.3g%s\n", what,
                mode.name, std::string(to_string(format)).c_str(), to_string(shape).c_str(), share,
                mode.limit, repeats ? "" : ", bits differ");
  }
  failures.worst = std::max(failures.worst, share / mode.limit);
}

void check_conv(const ConvShape& s, const Mode& mode, MemoryFormat format, Failures& failures) {
  const DType acc = acc_dtype(mode.dtype);
  const TensorOptions gpu{.dtype = mode.dtype, .device = kCuda, .format = format};
  const TensorOptions flat{.dtype = mode.dtype, .device = kCuda};
  const TensorOptions wide{.dtype = acc, .device = kCuda};
  const TensorOptions exact{.dtype = DType::f64};
  const auto input = [&](const Shape& shape, const TensorOptions& options) {
    return Tensor::from_vector<double>(random_values(shape.numel()), shape, options);
  };
  const auto on_cpu = [&](const Tensor& t) {
    return Tensor::from_vector<double>(t.to_vector<double>(), t.shape(), exact);
  };
  const Tensor x = input(s.x(), gpu), w = input(s.filter(), flat), bias = input({s.k}, wide);
  const Tensor dy = input(s.y(), gpu);
  const Tensor x64 = on_cpu(x), w64 = on_cpu(w), bias64 = on_cpu(bias), dy64 = on_cpu(dy);
  const Tensor y64 = Tensor::empty(s.y(), exact), dx64 = Tensor::empty(s.x(), exact);
  const Tensor dw64 = Tensor::empty(s.filter(), exact), dbias64 = Tensor::empty({s.k}, exact);
  const auto forward = [&](const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& y) {
    launch(Conv2dForward{a.raw(), b.raw(), c.raw(), y.raw(), s.window, s.groups, mode.tf32});
  };
  const auto backward = [&](const Tensor& a, const Tensor& b, const Tensor& dx) {
    launch(Conv2dBackwardInput{a.raw(), b.raw(), dx.raw(), s.window, s.groups, mode.tf32});
  };
  const auto weights = [&](const Tensor& a, const Tensor& b, const Tensor& dw, const Tensor& db) {
    launch(
        Conv2dBackwardWeight{a.raw(), b.raw(), dw.raw(), db.raw(), s.window, s.groups, mode.tf32});
  };
  forward(x64, w64, bias64, y64);
  backward(dy64, w64, dx64);
  weights(x64, dy64, dw64, dbias64);

  check_output("forward", s, mode, format, y64, gpu, failures,
               [&](const Tensor& y) { forward(x, w, bias, y); });
  check_output("backward to the input", s, mode, format, dx64, gpu, failures,
               [&](const Tensor& dx) { backward(dy, w, dx); });
  check_output("backward to the weights", s, mode, format, dw64, flat, failures,
               [&](const Tensor& dw) { weights(x, dy, dw, Tensor()); });
  if (acc != mode.dtype) {
    check_output("backward to f32 weights", s, mode, format, dw64, wide, failures,
                 [&](const Tensor& dw) { weights(x, dy, dw, Tensor()); });
  }
  Mode bias_mode = mode;
  bias_mode.limit = mode.dtype == DType::f64 ? 1e-13 : 4e-6;
  check_output("backward to the bias", s, bias_mode, format, dbias64, wide, failures,
               [&](const Tensor& dbias) { weights(x, dy, Tensor(), dbias); });
}

struct PoolShape {
  Shape x;
  Window window;
};
const PoolShape kPools[] = {
    {{2, 32, 28, 28}, {{2, 2}, {2, 2}}},      {{2, 8, 7, 9}, {{2, 2}, {2, 2}}},
    {{2, 5, 7, 9}, {{2, 3}, {2, 3}}},         {{2, 16, 9, 8}, {{3, 3}, {2, 2}, {1, 1}}},
    {{1, 3, 9, 8}, {{3, 2}, {1, 1}, {1, 1}}}, {{1, 8, 12, 13}, {{2, 3}, {1, 2}, {0, 1}, {2, 3}}},
    {{1, 8, 12, 13}, {{2, 2}, {3, 4}}},       {{1, 16, 20, 20}, {{17, 17}, {1, 1}, {8, 8}}},
    {{2, 1, 6, 6}, {{2, 2}, {2, 2}}},         {{0, 8, 6, 6}, {{2, 2}, {2, 2}}},
};

// Bits must agree with the CPU, apart from the order in which overlaps are added.
void check_pool(const PoolShape& s, DType dtype, MemoryFormat format, Failures& failures) {
  const TensorOptions on_cpu{.dtype = dtype, .format = format};
  const Shape out{s.x[0], s.x[1], s.window.positions(0, s.x[2]), s.window.positions(1, s.x[3])};
  const bool narrow = s.window.kernel[0] * s.window.kernel[1] <= 256;
  Values values = random_values(s.x.numel());
  for (double& value : values) value = std::round(value * 4);  // ties
  if (!values.empty()) values[values.size() / 2] = NAN;
  const Values upstream = random_values(out.numel());
  Values results[2][3];
  for (const Device device : {kCpu, kCuda}) {
    TensorOptions options = on_cpu;
    options.device = device;
    const Tensor x = Tensor::from_vector<double>(values, s.x, options);
    const Tensor dy = Tensor::from_vector<double>(upstream, out, options);
    const Tensor y = Tensor::empty(out, options), dx = Tensor::empty(s.x, options);
    TensorOptions index_options = options;
    index_options.dtype = narrow ? DType::u8 : DType::i32;
    const Tensor index = Tensor::empty(out, index_options);
    launch(MaxPool2dForward{x.raw(), y.raw(), index.raw(), s.window});
    launch(MaxPool2dBackward{dy.raw(), index.raw(), dx.raw(), s.window});
    Values* result = results[device == kCpu ? 0 : 1];
    result[0] = y.to_vector<double>();
    result[1] = index.to_vector<double>();
    result[2] = dx.to_vector<double>();
  }
  const char* names[] = {"y", "index", "dx"};
  for (int i = 0; i < 3; ++i) {
    const Values &want = results[0][i], &got = results[1][i];
    const bool same = std::equal(want.begin(), want.end(), got.begin(), [&](double a, double b) {
      return a == b || (a != a && b != b) || (i == 2 && std::abs(a - b) <= 0.02 * std::abs(a));
    });
    if (same) continue;
    ++failures.count;
    std::printf("FAILED max_pool2d %s %s %s %s\n", names[i], std::string(to_string(dtype)).c_str(),
                std::string(to_string(format)).c_str(), to_string(s.x).c_str());
  }
}

int check_all() {
  int failed = 0;
  for (const Mode& mode : kModes) {
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      Failures failures;
      for (const ConvShape& shape : kChecked) check_conv(shape, mode, format, failures);
      for (const PoolShape& shape : kPools) check_pool(shape, mode.dtype, format, failures);
      std::printf("%-5s %-14s %zu shapes, %d failures, worst error %.2f of its limit\n", mode.name,
                  std::string(to_string(format)).c_str(), std::size(kChecked), failures.count,
                  failures.worst);
      std::fflush(stdout);
      failed += failures.count;
    }
  }
  return failed;
}

// Microseconds of one launch: a graph of 20, the median of 9 replays.
template <class Launch>
double time_launch(const Launch& launch_once) {
  constexpr int kLaunches = 20, kReplays = 9;
  CudaGraph graph(cuda());
  launch_once();  // grows the workspace
  graph.capture([&] {
    for (int i = 0; i < kLaunches; ++i) launch_once();
  });
  cudaEvent_t start, stop;
  cuda_check(cudaEventCreate(&start), "bench");
  cuda_check(cudaEventCreate(&stop), "bench");
  std::vector<float> times;
  for (int i = 0; i < kReplays + 2; ++i) {
    cuda_check(cudaEventRecord(start, cuda().stream()), "bench");
    graph.replay();
    cuda_check(cudaEventRecord(stop, cuda().stream()), "bench");
    cuda_check(cudaEventSynchronize(stop), "bench");
    float milliseconds = 0;
    cuda_check(cudaEventElapsedTime(&milliseconds, start, stop), "bench");
    if (i >= 2) times.push_back(milliseconds);
  }
  cuda_check(cudaEventDestroy(start), "bench");
  cuda_check(cudaEventDestroy(stop), "bench");
  std::sort(times.begin(), times.end());
  return 1e3 * static_cast<double>(times[kReplays / 2]) / kLaunches;
}

// Times of forward, backward to the input, backward to the weights; prints a line of the table.
std::array<double, 3> time_conv(const ConvShape& s, const Mode& mode, MemoryFormat format) {
  const TensorOptions gpu{.dtype = mode.dtype, .device = kCuda, .format = format};
  const TensorOptions flat{.dtype = mode.dtype, .device = kCuda};
  const TensorOptions wide{.dtype = acc_dtype(mode.dtype), .device = kCuda};
  const auto input = [](const Shape& shape, const TensorOptions& options) {
    return Tensor::from_vector<double>(random_values(shape.numel()), shape, options);
  };
  const Tensor x = input(s.x(), gpu), w = input(s.filter(), flat), dy = input(s.y(), gpu);
  const Tensor y = Tensor::empty(s.y(), gpu), dx = Tensor::empty(s.x(), gpu);
  const Tensor dw = Tensor::empty(s.filter(), wide);
  const Conv2dForward forward{x.raw(), w.raw(), AnyView(), y.raw(), s.window, s.groups, mode.tf32};
  const Conv2dBackwardInput backward{dy.raw(), w.raw(), dx.raw(), s.window, s.groups, mode.tf32};
  const Conv2dBackwardWeight weights{x.raw(),  dy.raw(), dw.raw(), AnyView(),
                                     s.window, s.groups, mode.tf32};
  const std::array<double, 3> times{time_launch([&] { launch(forward); }),
                                    time_launch([&] { launch(backward); }),
                                    time_launch([&] { launch(weights); })};
  const double tera = 1e-6 * static_cast<double>(forward.flops());
  std::printf(
      "%-5s %-14s %4ld %3ld->%-3ld %2ldx%-2ld %3ldx%ld | %8.1f %8.1f %8.1f | %6.1f %6.1f %6.1f\n",
      mode.name, std::string(to_string(format)).c_str(), s.n, s.c, s.k, s.h, s.w,
      s.window.kernel[0], s.window.kernel[1], times[0], times[1], times[2], tera / times[0],
      tera / times[1], tera / times[2]);
  std::fflush(stdout);
  return times;
}

void time_pool(int64_t n, int64_t c, int64_t h, const Mode& mode, MemoryFormat format) {
  const TensorOptions gpu{.dtype = mode.dtype, .device = kCuda, .format = format};
  const Shape in{n, c, h, h}, out{n, c, h / 2, h / 2};
  const Tensor x = Tensor::from_vector<double>(random_values(in.numel()), in, gpu);
  const Tensor y = Tensor::empty(out, gpu), dx = Tensor::empty(in, gpu);
  const Tensor index = Tensor::empty(out, {.dtype = DType::u8, .device = kCuda, .format = format});
  const Window window{{2, 2}, {2, 2}};
  const MaxPool2dForward forward{x.raw(), y.raw(), index.raw(), window};
  const MaxPool2dBackward backward{y.raw(), index.raw(), dx.raw(), window};
  const double times[] = {time_launch([&] { launch(forward); }),
                          time_launch([&] { launch(backward); })};
  const double giga = 1e-3 * static_cast<double>(forward.bytes());
  std::printf("%-5s %-14s %4ld %3ld %2ldx%-2ld max_pool2d 2x2 | %8.1f %8.1f | %6.0f %6.0f GB/s\n",
              mode.name, std::string(to_string(format)).c_str(), n, c, h, h, times[0], times[1],
              giga / times[0], giga / times[1]);
}

void time_all() {
  const Window same{{3, 3}, {1, 1}, {1, 1}};
  std::printf("%s\nus: forward, backward to the input, to the weights | TFLOP/s of each\n",
              cuda().info().name.c_str());
  const Mode modes[] = {kModes[1], kModes[3], kModes[0]};
  for (const Mode& mode : modes) {
    for (const MemoryFormat format : {MemoryFormat::channels_last, MemoryFormat::contiguous}) {
      for (const int64_t n : {128, 512}) {
        const auto first = time_conv({n, 1, 28, 28, 32, same}, mode, format);
        double sum = first[0] + first[2];  // the first layer needs no gradient of its input
        for (const auto& [c, k, side] :
             {std::array<int64_t, 3>{32, 32, 28}, {32, 64, 14}, {64, 64, 14}}) {
          const auto times = time_conv({n, c, side, side, k, same}, mode, format);
          sum += times[0] + times[1] + times[2];
        }
        std::printf("      the 11 convolutions of a training step: %.1f us\n", sum);
        time_pool(n, 32, 28, mode, format);
        time_pool(n, 64, 14, mode, format);
      }
    }
  }
  const MemoryFormat last = MemoryFormat::channels_last;
  for (const Mode& mode : modes) {
    time_conv({256, 3, 32, 32, 64, same}, mode, last);
    time_conv({256, 64, 32, 32, 64, same}, mode, last);
    time_conv({256, 128, 16, 16, 128, same}, mode, last);
    time_conv({256, 256, 8, 8, 256, same}, mode, last);
    time_conv({256, 256, 16, 16, 512, {}}, mode, last);
    time_conv({256, 128, 32, 32, 128, {{3, 3}, {2, 2}, {1, 1}}}, mode, last);
    time_conv({256, 128, 32, 32, 128, same, 128}, mode, last);
  }
}

}  // namespace
}  // namespace gradus

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  try {
    const int failed = what == "--time" ? 0 : gradus::check_all();
    if (what != "--check") gradus::time_all();
    return failed == 0 ? 0 : 1;
  } catch (const gradus::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
