#include "autograd/ops/norm_terms.h"

#include <algorithm>

#include "autograd/grad_mode.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/ops/sum.h"

namespace gradus {
namespace {

// The formula over x, dy and gamma shaped [a, m, b] or [a, m] (gamma broadcasts), of which the axes
// in `set` are one set; mean and rstd broadcast too.
NormTerms terms_over(const Tensor& x, const Tensor& dy, const Tensor& gamma, const Tensor& mean,
                     const Tensor& rstd, const std::vector<int>& set, const Shape& shape) {
  const Tensor d = gamma.defined() ? dy * gamma : dy;
  const Tensor xhat = (mean.defined() ? x - mean : x) * rstd;
  const Tensor m2 = gradus::mean(d * xhat, set, true);
  NormTerms terms;
  terms.direct = (rstd * d).reshape(shape);
  terms.projection = -(rstd * xhat * m2).reshape(shape);
  if (mean.defined()) {
    const Tensor m1 = gradus::mean(d, set, true);
    terms.mean = -(rstd * m1).expand(x.shape()).contiguous().reshape(shape);
  }
  return terms;
}

// x and dy of one shape, in the accumulator's dtype, contiguous.
Tensor widened(const Tensor& tensor) {
  return tensor.detach().contiguous().to(acc_dtype(tensor.dtype()));
}

void check_inputs(const Tensor& x, const Tensor& dy, const Tensor& rstd, int least_rank,
                  std::string_view op) {
  check(is_floating(x.dtype()) && x.rank() >= least_rank, op, "expected a floating x of rank ",
        least_rank, " or more, got ", x);
  check(dy.shape() == x.shape(), op, "dy must have the shape of ", x, ", got ", dy);
  check(rstd.defined() && rstd.dtype() == acc_dtype(x.dtype()), op, "rstd must be ",
        acc_dtype(x.dtype()), " for ", x);
}

// Without a mean the formula is that of rms_norm.
void check_mean(const Tensor& mean, std::string_view op) {
  check(mean.defined(), op, "needs the mean");
}

void check_count(const Tensor& tensor, int64_t count, std::string_view what, const Tensor& x,
                 std::string_view op) {
  check(!tensor.defined() || (tensor.numel() == count && tensor.dtype() == acc_dtype(x.dtype())),
        op, what, " must have ", count, " values of ", acc_dtype(x.dtype()), " for ", x, ", got ",
        tensor);
}

Tensor shaped(const Tensor& tensor, const Shape& shape) {
  return tensor.defined() ? tensor.detach().contiguous().reshape(shape) : Tensor();
}

NormTerms row_terms(const Tensor& x, const Tensor& dy, const Tensor& gamma, const Tensor& mean,
                    const Tensor& rstd, std::string_view op) {
  const NoGradGuard no_grad;
  check_inputs(x, dy, rstd, 1, op);
  const int64_t rows = rstd.numel(), none = gamma.defined() ? gamma.numel() : 0;
  const int64_t d = rows == 0 ? none : x.numel() / rows;
  check(rows * d == x.numel(), op, "rstd must have one value per row of ", x, ", got ", rstd);
  check_count(mean, rows, "mean", x, op);
  check_count(gamma, d, "gamma", x, op);
  return terms_over(widened(x).reshape({rows, d}), widened(dy).reshape({rows, d}),
                    shaped(gamma, {1, d}), shaped(mean, {rows, 1}), shaped(rstd, {rows, 1}), {1},
                    x.shape());
}

}  // namespace

NormTerms batch_norm_terms(const Tensor& x, const Tensor& dy, const Tensor& gamma,
                           const Tensor& mean, const Tensor& rstd) {
  const NoGradGuard no_grad;
  check_inputs(x, dy, rstd, 2, "batch_norm_terms");
  check_mean(mean, "batch_norm_terms");
  const int64_t n = x.size(0), c = x.size(1), s = x.numel() / std::max<int64_t>(n * c, 1);
  check_count(gamma, c, "gamma", x, "batch_norm_terms");
  check_count(mean, c, "mean", x, "batch_norm_terms");
  check_count(rstd, c, "rstd", x, "batch_norm_terms");
  const Shape channels = {1, c, 1};
  return terms_over(widened(x).reshape({n, c, s}), widened(dy).reshape({n, c, s}),
                    shaped(gamma, channels), shaped(mean, channels), shaped(rstd, channels), {0, 2},
                    x.shape());
}

NormTerms group_norm_terms(const Tensor& x, const Tensor& dy, const Tensor& gamma,
                           const Tensor& mean, const Tensor& rstd, int64_t groups) {
  const NoGradGuard no_grad;
  check_inputs(x, dy, rstd, 2, "group_norm_terms");
  check_mean(mean, "group_norm_terms");
  const int64_t n = x.size(0), c = x.size(1), s = x.numel() / std::max<int64_t>(n * c, 1);
  check(groups > 0 && c % groups == 0, "group_norm_terms", "the ", c, " channels of ", x,
        " do not fall into ", groups, " groups");
  check_count(gamma, c, "gamma", x, "group_norm_terms");
  check_count(mean, n * groups, "mean", x, "group_norm_terms");
  check_count(rstd, n * groups, "rstd", x, "group_norm_terms");
  const Shape by_group = {n, groups, c / groups, s}, statistics = {n, groups, 1, 1};
  return terms_over(widened(x).reshape(by_group), widened(dy).reshape(by_group),
                    shaped(gamma, {1, groups, c / groups, 1}), shaped(mean, statistics),
                    shaped(rstd, statistics), {2, 3}, x.shape());
}

NormTerms layer_norm_terms(const Tensor& x, const Tensor& dy, const Tensor& gamma,
                           const Tensor& mean, const Tensor& rstd) {
  check_mean(mean, "layer_norm_terms");
  return row_terms(x, dy, gamma, mean, rstd, "layer_norm_terms");
}

NormTerms rms_norm_terms(const Tensor& x, const Tensor& dy, const Tensor& gamma,
                         const Tensor& rstd) {
  return row_terms(x, dy, gamma, {}, rstd, "rms_norm_terms");
}

}  // namespace gradus
