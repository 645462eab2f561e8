// Copy and fill on CUDA against the CPU: every pair of dtypes, every kind of strides.
#include <cmath>
#include <string>
#include <vector>

#include "core/launch.h"
#include "core/ops/copy.h"
#include "core/tensor.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                             DType::u8,  DType::i32, DType::i64};

// A strided window into a storage: what a chain of slices, transposes and expands leads to.
struct Layout {
  Shape shape;
  Strides strides;
  int64_t offset = 0;
  int64_t extent() const {
    int64_t last = offset;
    for (int i = 0; i < shape.rank(); ++i) last += (shape[i] - 1) * strides[i];
    return shape.numel() == 0 ? 1 : last + 1;
  }
};

struct CopyCase {
  std::string name;
  Layout x, y;
};

std::vector<CopyCase> copy_cases() {
  const Shape image = {2, 20, 17, 19}, few = {2, 3, 33, 7}, wide = {3, 64, 8, 32},
              packs = {2, 20, 10, 14}, narrow = {2, 32, 36, 9};
  const auto nchw = [](const Shape& s) { return Layout{s, strides_of(s)}; };
  const auto nhwc = [](const Shape& s) {
    return Layout{s, strides_of(s, MemoryFormat::channels_last)};
  };
  return {
      {"flat", nchw({64, 32}), nchw({64, 32})},
      {"flat, odd", nchw({1003}), nchw({1003})},
      {"flat, x unaligned", {{1024}, {1}, 1}, nchw({1024})},
      {"flat, y unaligned", nchw({1024}), {{1024}, {1}, 3}},
      {"both channels-last", nhwc(image), nhwc(image)},
      {"to channels-last", nchw(image), nhwc(image)},
      {"from channels-last", nhwc(image), nchw(image)},
      {"to channels-last, whole tiles", nchw(wide), nhwc(wide)},
      {"from channels-last, whole tiles", nhwc(wide), nchw(wide)},
      {"to channels-last, packs", nchw(packs), nhwc(packs)},
      {"from channels-last, packs", nhwc(packs), nchw(packs)},
      {"to channels-last, 32 channels", nchw(narrow), nhwc(narrow)},
      {"from channels-last, 32 channels", nhwc(narrow), nchw(narrow)},
      {"to channels-last, 3 channels", nchw(few), nhwc(few)},
      {"from channels-last, 3 channels", nhwc(few), nchw(few)},
      {"transposed matrix", {{65, 33}, {1, 65}}, nchw({65, 33})},
      {"transposed pieces", {{5, 40, 50}, {3000, 1, 60}, 7}, {{5, 40, 50}, {2500, 60, 1}, 2}},
      {"transposed packs apart", {{5, 40, 52}, {3000, 1, 60}, 4}, {{5, 40, 52}, {2600, 60, 1}, 8}},
      {"transposed, x unaligned", {{40, 52}, {1, 60}, 2}, nchw({40, 52})},
      {"transposed, y unaligned", {{40, 52}, {1, 60}}, {{40, 52}, {52, 1}, 2}},
      {"transposed, rows no packs", {{40, 52}, {1, 61}}, nchw({40, 52})},
      {"transposed, matrices no packs", {{5, 40, 52}, {3001, 1, 60}}, nchw({5, 40, 52})},
      {"tile of two batch axes", {{3, 4, 20, 30}, {2400, 600, 1, 20}}, nchw({3, 4, 20, 30})},
      {"row repeated", {{50, 77}, {0, 1}}, nchw({50, 77})},
      {"column repeated", {{50, 77}, {1, 0}}, nchw({50, 77})},
      {"one element repeated", {{2, 3, 4}, {0, 0, 0}}, nchw({2, 3, 4})},
      {"row repeated in packs", {{50, 80}, {0, 1}}, nchw({50, 80})},
      {"column repeated in packs", {{50, 80}, {1, 0}}, nchw({50, 80})},
      {"middle repeated in packs", {{3, 7, 32}, {32, 0, 1}}, nchw({3, 7, 32})},
      {"ends repeated in packs", {{3, 7, 32}, {0, 1, 0}, 3}, nchw({3, 7, 32})},
      {"middle repeated, x unaligned", {{3, 7, 32}, {32, 0, 1}, 1}, nchw({3, 7, 32})},
      {"planes of 49 repeated", {{3, 5, 49}, {5, 1, 0}}, nchw({3, 5, 49})},
      {"rows of 49 repeated", {{3, 7, 49}, {49, 0, 1}}, nchw({3, 7, 49})},
      {"rows of 49 repeated, y unaligned", {{3, 7, 49}, {49, 0, 1}}, {{3, 7, 49}, {343, 49, 1}, 1}},
      {"one element repeated in packs", {{16, 32}, {0, 0}}, nchw({16, 32})},
      {"long rows of packs, repeated", {{5, 4096}, {1, 0}}, nchw({5, 4096})},
      {"long rows of packs, outer repeated", {{5, 4096}, {0, 1}}, nchw({5, 4096})},
      {"many packs, each repeated", {{40, 131072}, {0, 1}}, nchw({40, 131072})},
      {"middle repeated by fours", {{3, 8, 256}, {256, 0, 1}}, nchw({3, 8, 256})},
      {"first repeated four times", {{4, 5, 256}, {0, 256, 1}}, nchw({4, 5, 256})},
      {"two axes repeated, one by fours", {{6, 3, 12, 256}, {0, 256, 0, 1}}, nchw({6, 3, 12, 256})},
      {"two axes repeated by fours", {{8, 3, 12, 256}, {0, 256, 0, 1}}, nchw({8, 3, 12, 256})},
      {"repeated by fours to rows apart", {{8, 256}, {0, 1}, 16}, {{8, 256}, {272, 1}, 32}},
      {"repeated by fours in channels-last",
       {{2, 256, 8, 5}, {1280, 1, 0, 256}},
       nhwc({2, 256, 8, 5})},
      {"rows of packs apart", {{5, 48}, {64, 1}, 16}, {{5, 48}, {80, 1}, 32}},
      {"every second", {{31, 20}, {80, 2}, 1}, {{31, 20}, {60, 3}}},
      {"scalar", nchw({}), nchw({})},
      {"empty", nchw({0, 3}), nchw({0, 3})},
      {"rank 8",
       {{2, 3, 2, 2, 3, 2, 2, 2}, {1, 2, 96, 6, 12, 48, 192, 384}},
       nchw({2, 3, 2, 2, 3, 2, 2, 2})},
      {"many rows", {{200001, 2}, {3, 1}}, {{200001, 2}, {1, 200001}}},
  };
}

// The tensor with `layout` over a storage of `values` (repeated as needed), on the CPU.
Tensor laid_out(const Layout& layout, const std::vector<double>& values, DType dtype) {
  std::vector<double> all(static_cast<size_t>(layout.extent()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = values[i % values.size()];
  const Tensor base = Tensor::from_vector(all, {layout.extent()}, {.dtype = dtype});
  return base.as_strided(layout.shape, layout.strides, layout.offset);
}

// The same storage on the GPU.
Tensor on_gpu(const Tensor& x) {
  const Shape all = {static_cast<int64_t>(x.storage()->bytes()) / size_of(x.dtype())};
  return x.as_strided(all, {1}, 0).to(kCuda).as_strided(x.shape(), x.strides(), x.offset());
}

// Everything in the storage, so that a write outside the view is seen.
std::vector<double> all_values(const Tensor& x) {
  const Shape all = {static_cast<int64_t>(x.storage()->bytes()) / size_of(x.dtype())};
  return x.as_strided(all, {1}, 0).to_vector<double>();
}

void expect_same(const Tensor& cpu, const Tensor& gpu, const std::string& what) {
  const std::vector<double> expected = all_values(cpu), got = all_values(gpu);
  ASSERT_EQ(expected.size(), got.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const bool both_nan = std::isnan(expected[i]) && std::isnan(got[i]);
    const bool same = expected[i] == got[i] && std::signbit(expected[i]) == std::signbit(got[i]);
    ASSERT_TRUE(both_nan || same) << what << ", element " << i << ": CPU " << expected[i]
                                  << ", GPU " << got[i];
  }
}

void check_copy(const CopyCase& c, DType to, DType from, const std::vector<double>& values) {
  const Tensor x = laid_out(c.x, values, from);
  const Tensor y = laid_out(c.y, {7.0}, to);
  const Tensor x_gpu = on_gpu(x), y_gpu = on_gpu(y);
  launch(Copy{.x = x.raw(), .y = y.raw()});
  launch(Copy{.x = x_gpu.raw(), .y = y_gpu.raw()});
  expect_same(y, y_gpu, concat(c.name, ", ", from, " to ", to));
}

using CudaCopyTest = test::GpuTest;

// Distinct over a few hundred elements in every dtype, u8 included.
std::vector<double> distinct() {
  std::vector<double> values(251);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  return values;
}

// The edges of the conversions: ties, overflow, subnormals, what has no integer.
std::vector<double> edges() {
  return {0.0,
          -0.0,
          0.5,
          -0.5,
          1.5,
          -1.5,
          255.0,
          255.9,
          256.0,
          -1.0,
          1.00390625,
          1.01171875,
          65504.0,
          65519.0,
          65520.0,
          1e5,
          -1e5,
          3.4e38,
          -3.4e38,
          1e300,
          -1e300,
          5e-8,
          1e-40,
          1e-320,
          2147483647,
          2147483648.0,
          -2147483648,
          -2147483649.0,
          9.3e18,
          -9.3e18,
          16777217.0,
          2049.0,
          4503599627370497.0,
          9007199254740993.0,
          INFINITY,
          -INFINITY,
          NAN,
          3.14,
          0.2691408770};
}

TEST_F(CudaCopyTest, EveryPairOfDtypesAndKindOfStrides) {
  const std::vector<CopyCase> cases = copy_cases();
  for (const DType to : kDTypes) {
    for (const DType from : kDTypes) {
      for (const CopyCase& c : cases) {
        if (c.name == "many rows" && to != from) continue;
        check_copy(c, to, from, distinct());
        if (HasFatalFailure()) return;
      }
      check_copy({"edges", {{39 * 16}, {1}}, {{39 * 16}, {1}}}, to, from, edges());
      check_copy({"edges, strided", {{39}, {1}}, {{39}, {2}}}, to, from, edges());
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaCopyTest, FillOfEveryDtype) {
  const Layout layouts[] = {{{64, 16}, {16, 1}},    {{1003}, {1}}, {{1024}, {1}, 1},
                            {{40, 50}, {1, 41}, 2}, {{}, {}},      {{0, 4}, {4, 1}},
                            {{70000, 3}, {5, 1}, 0}};
  for (const DType dtype : kDTypes) {
    for (const double value : {0.0, 3.0, -2.5, 300.7}) {
      for (const Layout& layout : layouts) {
        const Tensor y = laid_out(layout, {7.0}, dtype);
        const Tensor y_gpu = on_gpu(y);
        launch(Fill{.y = y.raw(), .value = value});
        launch(Fill{.y = y_gpu.raw(), .value = value});
        expect_same(y, y_gpu, concat("fill of ", dtype, layout.shape, " with ", value));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// More transposed tiles, and more blocks, than the grid has along y and z.
TEST_F(CudaCopyTest, MoreTilesThan65535) {
  const Shape shape = {70001, 16, 17};
  const CopyCase c{"many tiles", {shape, {272, 1, 16}}, {shape, strides_of(shape)}};
  check_copy(c, DType::u8, DType::u8, distinct());
  check_copy(c, DType::f32, DType::f32, distinct());
}

// Offsets beyond 32 bits: 2^31 + 100 elements, u8, and a transpose over them.
TEST_F(CudaCopyTest, IndicesBeyond32Bits) {
  const int64_t count = (int64_t(1) << 31) + 100;
  Tensor x = Tensor::full({count}, 5.0, {.dtype = DType::u8, .device = kCuda});
  x.slice(0, count - 3, count).fill_(9.0);
  const Tensor last = x.slice(0, count - 5, count).to(DType::f32);
  EXPECT_EQ(last.to_vector<float>(), (std::vector<float>{5, 5, 9, 9, 9}));
  const Tensor turned = x.reshape({2, count / 2}).transpose(0, 1);
  const Tensor y = turned.contiguous();
  EXPECT_EQ(y.slice(0, count / 2 - 3, count / 2).to_vector<int64_t>(),
            (std::vector<int64_t>{5, 9, 5, 9, 5, 9}));
  const Tensor wide = turned.slice(0, count / 2 - 4, count / 2).to(DType::i32);
  EXPECT_EQ(wide.to_vector<int64_t>(), (std::vector<int64_t>{5, 5, 5, 9, 5, 9, 5, 9}));
}

}  // namespace
}  // namespace gradus
