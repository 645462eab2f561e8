#include "autograd/ops/local_response_norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/grad_mode.h"
#include "autograd/ops/sum.h"
#include "core/trace.h"
#include "cuda/local_response_norm_plan.h"
#include "nn/local_response_norm.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/named_slip.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(local_response_norm);

using Values = std::vector<double>;

class LocalResponseNorm : public test::EachDevice {
 protected:
  Tensor tensor(const ref::Array& array, DType dtype = DType::f64) {
    return Tensor::from_vector(array.data, array.shape, {.dtype = dtype, .device = GetParam()});
  }
};
GRADUS_ON_EACH_DEVICE(LocalResponseNorm);

TEST_P(LocalResponseNorm, HandsOutItsDenominators) {
  for (const bool channels_last : {false, true}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      ref::Array x = draw_upstream({2, 9, 4, 3}, dtype, 11);
      const auto format = channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
      const Tensor in = Tensor::from_vector(
          x.data, x.shape, {.dtype = dtype, .device = GetParam(), .format = format});
      for (const int64_t size : {4, 5, 20}) {
        const Tensor denom = local_response_norm_denom(in, size, 2.0, 0.5);
        EXPECT_EQ(denom.dtype(), acc_dtype(dtype));
        EXPECT_TRUE(denom.is_contiguous(format));
        const ref::LrnForward want =
            ref::local_response_norm(x, {.size = size, .alpha = 2.0, .k = 0.5});
        EXPECT_TRUE(agrees(denom.to_vector<double>(), want.denom.data, acc_dtype(dtype), size));
      }
    }
  }
}

TEST_P(LocalResponseNorm, DenominatorsDoNotSeverAGradient) {
  Tensor x = tensor(ref::full({1, 2, 3}, 1.0)).set_requires_grad(true);
  EXPECT_ERROR(local_response_norm_denom(x, 3), ErrorCode::autograd,
               "local_response_norm_denom: the denominators carry no history; call it on "
               "x.detach() or under NoGradGuard");
  const NoGradGuard no_grad;
  EXPECT_FALSE(local_response_norm_denom(x, 3).requires_grad());
}

TEST_P(LocalResponseNorm, WrongArgumentsAreNamed) {
  const Tensor x = tensor(ref::full({2, 3, 2}, 1.0), DType::f32);
  const std::string at = GetParam() == kCpu ? "@cpu" : "@cuda:0";
  EXPECT_ERROR(local_response_norm(x, 0), ErrorCode::invalid_argument,
               "local_response_norm: size must be at least 1, got 0");
  EXPECT_ERROR(local_response_norm(x.flatten(), 5), ErrorCode::invalid_argument,
               "local_response_norm: expected [n, c, ...] of rank 2 to 5, got f32[12]" + at);
  EXPECT_ERROR(local_response_norm(x.to(DType::i64), 5), ErrorCode::invalid_argument,
               "local_response_norm: expected a floating dtype, got i64[2,3,2]" + at);
  EXPECT_ERROR(local_response_norm(x, 5, -1), ErrorCode::invalid_argument,
               "local_response_norm: alpha and k must not be negative, got alpha -1 and k 1");
}

TEST_P(LocalResponseNorm, OtherStridesAreCopiedFirst) {
  const ref::Array values = draw_upstream({3, 4, 5}, DType::f64, 3);
  Tensor base = tensor(values).set_requires_grad(true);
  const Tensor x = base.transpose(1, 2);
  Trace trace;
  const Tensor y = local_response_norm(x, 3, 1.0);
  EXPECT_TRUE(std::any_of(trace.records().begin(), trace.records().end(),
                          [](const auto& record) { return record.name == "copy"; }));
  const Tensor want = local_response_norm(x.detach().contiguous(), 3, 1.0);
  EXPECT_EQ(y.to_vector<double>(), want.to_vector<double>());
  sum(y).backward();
  EXPECT_TRUE(base.grad().defined());
}

TEST_P(LocalResponseNorm, UnalignedViewsAgreeWithAlignedOnes) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    const ref::Array values = draw_upstream({1, 6 * 16 + 1}, dtype, 5);
    const Tensor all = tensor(values, dtype);
    const Tensor view = all.as_strided({1, 6, 16}, {96, 16, 1}, 1);
    const auto run = [](const Tensor& from) {
      Tensor x = from.detach().set_requires_grad(true);
      const Tensor y = local_response_norm(x, 5, 1.0);
      y.backward(y.detach());
      Values both = y.to_vector<double>();
      const Values dx = x.grad().to_vector<double>();
      both.insert(both.end(), dx.begin(), dx.end());
      return both;
    };
    // On CUDA the alignment may decide how a product and a sum are rounded.
    EXPECT_TRUE(agrees(run(view), run(view.clone()), dtype, 5));
  }
}

TEST_P(LocalResponseNorm, EmptyTensors) {
  for (const Shape& shape : {Shape{0, 3, 4}, Shape{2, 0, 4}, Shape{2, 3, 0}, Shape{0, 5}}) {
    Tensor x = Tensor::zeros(shape, {.dtype = DType::f32, .device = GetParam()});
    x.set_requires_grad(true);
    const Tensor y = local_response_norm(x, 5);
    EXPECT_EQ(to_string(y.shape()), to_string(shape));
    sum(y).backward();
    EXPECT_EQ(to_string(x.grad().shape()), to_string(shape));
  }
}

TEST_P(LocalResponseNorm, MoreRowsThanAGridAxisHolds) {
  const int64_t rows = 65537;
  for (const Shape& shape : {Shape{rows, 3}, Shape{rows, 3, 2}, Shape{2, rows, 2}}) {
    Tensor x = Tensor::full(shape, 2.0, {.dtype = DType::f32, .device = GetParam()});
    x.set_requires_grad(true);
    const Tensor y = local_response_norm(x, 1, 1.0, 1.0, 0.0);  // x / x²
    y.backward(Tensor::ones(shape, y.options()));               // -1 / x²
    for (const float value : y.to_vector<float>()) ASSERT_EQ(value, 0.5f);
    for (const float value : x.grad().to_vector<float>()) ASSERT_EQ(value, -0.25f);
  }
}

TEST_P(LocalResponseNorm, NaNStaysInItsWindows) {
  Values values(9, 1.0);
  values[3] = NAN;
  Tensor x = tensor({{1, 9}, values}, DType::f32).set_requires_grad(true);
  const Tensor y = local_response_norm(x, 4, 1.0);  // window c - 2 to c + 1 reaches channel 3
  y.backward(Tensor::ones({1, 9}, y.options()));
  const Values got = y.to_vector<double>(), dx = x.grad().to_vector<double>();
  for (int c = 0; c < 9; ++c) {
    EXPECT_EQ(std::isnan(got[size_t(c)]), c >= 2 && c <= 5) << c;
    // dx meets the windows of c - 1 to c + 2, four of which hold channel 3.
    EXPECT_EQ(std::isnan(dx[size_t(c)]), c <= 6) << c;
  }
}

// The same where a thread has several channels and what windows share is added up once.
TEST_P(LocalResponseNorm, NaNStaysInItsWindowsOfManyChannels) {
  constexpr int kChannels = 40, kPixels = 2;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const int size : {3, 5, 7}) {
      for (const int channel : {12, 17}) {
        SCOPED_TRACE(concat(to_string(dtype), ", size ", size, ", channel ", channel));
        Values values(kChannels * kPixels, 1.0);
        values[size_t(channel * kPixels)] = NAN;
        Tensor x = tensor({{1, kChannels, kPixels}, values}, dtype).set_requires_grad(true);
        const Tensor y = local_response_norm(x, size);
        y.backward(Tensor::ones(x.shape(), y.options()));
        const Values got = y.to_vector<double>(), dx = x.grad().to_vector<double>();
        for (int i = 0; i < kChannels * kPixels; ++i) {
          const int away = std::abs(i / kPixels - channel);
          const bool beside = i % kPixels == 0;
          EXPECT_EQ(std::isnan(got[size_t(i)]), beside && away <= size / 2) << i;
          EXPECT_EQ(std::isnan(dx[size_t(i)]), beside && away <= size / 2 * 2) << i;
        }
      }
    }
  }
}

TEST_P(LocalResponseNorm, LayerIsTheFunction) {
  const ref::Array values = draw_upstream({2, 5, 3, 3}, DType::f32, 9);
  const Tensor x = tensor(values, DType::f32);
  nn::LocalResponseNorm layer(3, 0.5, 0.6, 2.0);
  EXPECT_EQ(layer.kind(), "LocalResponseNorm");
  EXPECT_EQ(layer.forward(x).to_vector<float>(),
            local_response_norm(x, 3, 0.5, 0.6, 2.0).to_vector<float>());
  nn::LocalResponseNorm defaults(5);
  EXPECT_EQ(defaults.forward(x).to_vector<float>(), local_response_norm(x, 5).to_vector<float>());
  EXPECT_ERROR(nn::LocalResponseNorm(0), ErrorCode::invalid_argument,
               "local_response_norm: size must be at least 1, got 0");
}

TEST_P(LocalResponseNorm, AgreesWithPyTorch) {
  for (const auto& golden : ref::golden_cases("local_response_norm")) {
    SCOPED_TRACE(golden.at("name").get<std::string>());
    const auto& args = golden.at("args");
    Tensor x = tensor(ref::golden_array(golden.at("inputs"), "x")).set_requires_grad(true);
    const int64_t size = args.at("size");
    const Tensor y = local_response_norm(x, size, args.at("alpha"), args.at("beta"), args.at("k"));
    y.backward(tensor(ref::golden_array(golden.at("dy"))));
    const ref::Array want = ref::golden_array(golden.at("outputs"), "y");
    const ref::Array dx = ref::golden_array(golden.at("gradients"), "x");
    EXPECT_TRUE(agrees(y.to_vector<double>(), want.data, DType::f64, size));
    EXPECT_TRUE(agrees(x.grad().to_vector<double>(), dx.data, DType::f64, size));
  }
}

// Also where the denominator is 0 and other powers of it count as 0.
TEST(LocalResponseNormCpu, BetaOfZeroIsTheIdentity) {
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const std::vector<double> values{0, 0, 0, 0, 3, -2}, upstream{1, 2, 3, 4, 5, 6};
    const TensorOptions options{.dtype = DType::f64, .format = format};
    const Tensor x = Tensor::from_vector(values, {1, 3, 1, 2}, options).set_requires_grad(true);
    const Tensor y = local_response_norm(x, 3, 1.0, 0.0, 0.0);
    EXPECT_EQ(y.to_vector<double>(), values);
    y.backward(Tensor::from_vector(upstream, {1, 3, 1, 2}, options));
    EXPECT_EQ(x.grad().to_vector<double>(), upstream);
  }
}

TEST(LocalResponseNormPlan, TilesCoverPixelsAndChannels) {
  for (const int64_t n : {1, 128, 256}) {
    for (const int64_t c : {1, 5, 16, 33, 47, 128, 70000}) {
      for (const int width : {1, 4, 8}) {
        for (const auto& [channels, threads] : {std::pair(4, 256), {8, 128}, {16, 128}}) {
          const ResponseTiles plan = plan_response_tiles(n, c, 56 * 56, width, channels, threads);
          EXPECT_EQ(plan.packs, n * 56 * 56 / width);
          EXPECT_LE(plan.groups * ResponseTiles::kLanes, threads);
          EXPECT_GE(plan.channel_tiles.divisor * plan.groups * channels, c);
          EXPECT_LT((plan.channel_tiles.divisor - 1) * plan.groups * channels, c);
          EXPECT_EQ(plan.blocks,
                    plan.channel_tiles.divisor * ceil_div(plan.packs, ResponseTiles::kLanes));
        }
      }
    }
  }
}

TEST(LocalResponseNormPlan, ScratchIsBounded) {
  EXPECT_EQ(response_samples_at_once(kResponseScratch), 1);
  EXPECT_EQ(response_samples_at_once(2 * kResponseScratch), 1);
  EXPECT_EQ(response_samples_at_once(kResponseScratch / 8), 8);
  EXPECT_EQ(response_samples_at_once(0), kResponseScratch);
}

// ---- mutants -----------------------------------------------------------------------------------

// The formula with switches for its usual mistakes; all off, it is right.
struct Mutant {
  const char* name;
  explain::Slip slip = explain::Slip::none;  // as the diagnosis names it
  bool shifted_window = false;               // even sizes: one more channel above instead of below
  bool unmirrored = false;                   // backward adds over the forward's window
  bool alpha_undivided = false;              // alpha instead of alpha/size
  bool second_missing = false;               // dx is the direct term alone
  bool in_range_count = false;               // divided by the channels inside the tensor
  bool second_not_doubled = false;
  bool same_power = false;     // denom^-beta instead of denom^(-beta - 1) in the second term
  bool edge_repeated = false;  // channels outside repeat the border's
};

struct Results {
  ref::Array y, dx;
};

Results with_mistakes(const Mutant& m, const ref::Array& x, const ref::LrnOptions& o,
                      const ref::Array& dy) {
  const int64_t n = x.shape[0], c = x.shape[1], s = x.numel() / (n * c);
  int64_t before = o.size / 2, after = o.size - o.size / 2 - 1;
  if (m.shifted_window) std::swap(before, after);
  const double scale = m.alpha_undivided ? o.alpha : o.alpha / static_cast<double>(o.size);
  Results r{ref::zeros(x.shape), ref::zeros(x.shape)};
  for (int64_t i = 0; i < n * s; ++i) {
    const auto at = [&](int64_t channel) { return (i / s * c + channel) * s + i % s; };
    Values denom(static_cast<size_t>(c), o.k);
    for (int64_t channel = 0; channel < c; ++channel) {
      double squares = 0, count = 0;
      for (int64_t j = channel - before; j <= channel + after; ++j) {
        const bool inside = j >= 0 && j < c;
        if (!inside && !m.edge_repeated) continue;
        const double value = x[at(std::clamp<int64_t>(j, 0, c - 1))];
        squares += value * value;
        count += inside;
      }
      denom[size_t(channel)] += m.in_range_count ? o.alpha / count * squares : scale * squares;
      r.y[at(channel)] = x[at(channel)] * std::pow(denom[size_t(channel)], -o.beta);
    }
    const int64_t down = m.unmirrored ? before : after, up = m.unmirrored ? after : before;
    for (int64_t channel = 0; channel < c; ++channel) {
      double sum = 0;
      for (int64_t j = std::max<int64_t>(0, channel - down); j <= std::min(c - 1, channel + up);
           ++j) {
        const double power = m.same_power ? -o.beta : -o.beta - 1;
        sum += dy[at(j)] * x[at(j)] * std::pow(denom[size_t(j)], power);
      }
      const double second = m.second_missing ? 0 : (m.second_not_doubled ? 1 : 2) * o.beta * scale;
      r.dx[at(channel)] = dy[at(channel)] * std::pow(denom[size_t(channel)], -o.beta) -
                          second * x[at(channel)] * sum;
    }
  }
  return r;
}

TEST(LocalResponseNormMutants, AreAllRejectedAndNamed) {
  using explain::Slip;
  const Mutant mutants[] = {
      {"right"},
      {.name = "window on the other side",
       .slip = Slip::window_on_other_side,
       .shifted_window = true},
      {.name = "window not mirrored", .slip = Slip::window_not_mirrored, .unmirrored = true},
      {.name = "alpha undivided", .slip = Slip::alpha_undivided, .alpha_undivided = true},
      {.name = "second term missing", .slip = Slip::neighbours_missing, .second_missing = true},
      {.name = "divided by the channels in range",
       .slip = Slip::alpha_by_channels_in_range,
       .in_range_count = true},
      {.name = "second term not doubled", .slip = Slip::wrong_scale, .second_not_doubled = true},
      {.name = "second term with denom^-beta", .slip = Slip::wrong_power, .same_power = true},
      {.name = "border channels repeated", .slip = Slip::border_repeated, .edge_repeated = true},
  };
  // The two mistakes of sides show for even sizes only, the border's for windows above 1.
  const ref::LrnOptions sizes[] = {{.size = 4, .alpha = 2},
                                   {.size = 2, .alpha = 1},
                                   {.size = 6, .alpha = 0.5, .beta = 0.5, .k = 2}};
  for (const ref::LrnOptions& options : sizes) {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      const ref::Array x = draw_upstream({3, 9, 4}, dtype, 7),
                       dy = draw_upstream(x.shape, dtype, 8);
      const ref::Array y = ref::local_response_norm(x, options).y;
      const ref::Array dx = ref::local_response_norm_backward(x, options, dy);
      for (const Mutant& mutant : mutants) {
        const Results got = with_mistakes(mutant, x, options, dy);
        const bool accepted = static_cast<bool>(compare(got.y.data, y.data, dtype, options.size)) &&
                              static_cast<bool>(compare(got.dx.data, dx.data, dtype, options.size));
        EXPECT_EQ(accepted, std::string(mutant.name) == "right")
            << mutant.name << ", size " << options.size << ", " << to_string(dtype);
        if (dtype != DType::f64) continue;
        EXPECT_TRUE(test::names({.layer = explain::Layer::local_response_norm,
                                 .size = options.size,
                                 .alpha = options.alpha,
                                 .beta = options.beta,
                                 .k = options.k},
                                {.x = test::as_f64(x), .dy = test::as_f64(dy)},
                                {.dx = test::as_f64(got.dx)}, mutant.slip))
            << mutant.name << ", size " << options.size;
      }
    }
  }
}

}  // namespace
}  // namespace gradus
