// What overflows in half precision, by example.
#include <algorithm>

#include "autograd/explain/steps.h"
#include "core/error.h"

namespace gradus::explain {
namespace {

Numbers exact(const Values& values) { return {values.begin(), values.end()}; }
Values means(const Layout& layout, const Values& values) {
  return values_of(mean_over_sets(layout, exact(values)));
}

Values rounded(const Values& values, DType dtype) {
  const Shape shape = {static_cast<int64_t>(values.size())};
  return Tensor::from_vector(values, shape).to(dtype).to_vector<double>();
}

// x less the mean of its set where the layer takes that away.
Values centre(const Setting& setting, const Layout& layout, Values x) {
  if (!setting.has_mean()) return x;
  const Values mu = means(layout, x);
  for (size_t i = 0; i < x.size(); ++i) x[i] -= mu[at(layout.set, i)];
  return x;
}

double largest_of(const Values& x) {
  double largest = 0;
  for (const double value : x) largest = std::max(largest, std::abs(value));
  return largest;
}

// x as f16 holds it, changed so that something overflows: stretched until what is squared reaches
// 300, or, for softmax2d, moved until the largest is 12. An offset that f16 cannot hold beside such
// a spread is left out. 0 where all x of a set are equal but for rounding.
Values overflowing(const Setting& setting, const Layout& layout, Values x) {
  if (setting.layer == Layer::softmax2d) {
    const double top = *std::ranges::max_element(x);
    for (double& value : x) value += 12 - top;
    return rounded(x, DType::f16);
  }
  const Values centred = centre(setting, layout, x);
  const double scale = largest_of(centred), largest = largest_of(x);
  if (!(scale > 1e-12 * largest)) return Values(x.size(), 0.0);
  if (!(largest / scale < 200)) x = centred;
  for (double& value : x) value = value / scale * 300;
  return rounded(x, DType::f16);
}

// y of the five norms with squares that were rounded to f16 before they were added.
Values norm_wrong(const Setting& setting, const Inputs& in, const Layout& layout,
                  const Values& centred, const Values& squares) {
  const Values var = means(layout, squares);
  const Values gamma = in.gamma.to_vector<double>();
  const Values beta = in.beta.defined() ? in.beta.to_vector<double>() : Values(gamma.size(), 0.0);
  return each(centred.size(), [&](size_t i) {
    const double rstd = 1 / std::sqrt(var[at(layout.set, i)] + setting.eps);
    return gamma[at(layout.param, i)] * centred[i] * rstd + beta[at(layout.param, i)];
  });
}

Values response_wrong(const Setting& o, const Values& x, const Values& squares,
                      const Shape& shape) {
  const Values sums =
      values_of(window_sums(shape, o.size / 2, o.size - o.size / 2 - 1, exact(squares)));
  return each(x.size(), [&](size_t i) {
    return x[i] * std::pow(o.k + o.alpha / static_cast<double>(o.size) * sums[i], -o.beta);
  });
}

Values softmax_wrong(const Values& exps, const Layout& layout) {
  const Values total = values_of(sum_over_sets(layout, exact(exps)));
  return each(exps.size(), [&](size_t i) { return exps[i] / total[at(layout.set, i)]; });
}

// y as the layer computes it from f16 values; parameters stay f32, as in mixed precision.
Tensor library_half(const Setting& setting, const Inputs& in, const Tensor& x) {
  const auto parameter = [](const Tensor& t) { return t.defined() ? t.to(DType::f32) : Tensor(); };
  const Inputs half{.x = x.to(DType::f16),
                    .dy = {},
                    .gamma = parameter(in.gamma),
                    .beta = parameter(in.beta),
                    .running_mean = parameter(in.running_mean),
                    .running_var = parameter(in.running_var)};
  return library_forward(setting, half).to(DType::f64);
}

}  // namespace

HalfNote half_note(const Setting& setting, const Inputs& in, const Layout& layout) {
  if (setting.is_evaluation()) {
    return {.text = "Evaluation takes no squares: nothing overflows that x itself does not."};
  }
  const Shape& shape = in.x.shape();
  const bool is_softmax = setting.layer == Layer::softmax2d;
  const Values x = overflowing(setting, layout, in.x.to_vector<double>());
  const Values centred = centre(setting, layout, x);
  const Values squares =
      rounded(each(x.size(),
                   [&](size_t i) { return is_softmax ? std::exp(x[i]) : centred[i] * centred[i]; }),
              DType::f16);
  HalfNote note;
  note.x = Tensor::from_vector(x, shape);
  note.squares = Tensor::from_vector(squares, shape);
  note.right = library_half(setting, in, note.x);
  if (is_softmax) {
    note.wrong = Tensor::from_vector(softmax_wrong(squares, layout), shape);
    note.text =
        "f16 holds numbers up to 65504, and e^11.1 is more: without taking the maximum away, an x "
        "of 12 gives inf, and inf / inf is not a number. gradus takes it away and adds in f32. "
        "Here x is moved until its largest is 12.";
    return note;
  }
  note.wrong =
      Tensor::from_vector(setting.is_norm() ? norm_wrong(setting, in, layout, centred, squares)
                                            : response_wrong(setting, x, squares, shape),
                          shape);
  note.text =
      "f16 holds numbers up to 65504, and 256² = 65536 is more: squares of values above 256 "
      "overflow before an f32 sum sees them, and what is divided by them becomes 0. gradus widens "
      "each value to f32 before it is squared. bf16 has the range of f32, but 8 bits of precision. "
      "Here x is stretched until what is squared reaches 300.";
  return note;
}

}  // namespace gradus::explain
