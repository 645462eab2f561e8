// The five norms: one formula over different sets (core/ops/normalization.h).
#include <algorithm>

#include "autograd/explain/steps.h"
#include "core/error.h"

namespace gradus::explain {
namespace {

// The formula's values, by plain loops.
struct NormValues {
  Numbers x, dy, gamma, beta;  // as given
  Numbers mu, var, rstd;       // per set
  Numbers xhat, y, d;          // per element
  Numbers m1, m2;              // per set
  Numbers direct, mean, projection, dx;
  Numbers dgamma, dbeta;  // per parameter
};

Numbers numbers_or(const Tensor& tensor, size_t count, double value) {
  return tensor.defined() ? numbers_of(tensor) : Numbers(count, value);
}

NormValues compute(const Setting& setting, const Inputs& in, const Layout& layout) {
  NormValues v;
  v.x = numbers_of(in.x);
  v.dy = numbers_of(in.dy);
  const size_t count = v.x.size(), params = static_cast<size_t>(layout.params);
  v.gamma = numbers_or(in.gamma, params, 1);
  v.beta = numbers_or(in.beta, params, 0);
  const auto set = [&](const Numbers& per_set, size_t i) { return per_set[at(layout.set, i)]; };
  const auto param = [&](const Numbers& per_param, size_t i) {
    return per_param[at(layout.param, i)];
  };
  if (setting.is_evaluation()) {
    v.mu = numbers_of(in.running_mean);
    v.var = numbers_of(in.running_var);
  } else {
    v.mu = setting.has_mean() ? mean_over_sets(layout, v.x)
                              : Numbers(static_cast<size_t>(layout.sets), 0.0);
    v.var = mean_over_sets(layout, each(count, [&](size_t i) {
                             const Number centred = v.x[i] - set(v.mu, i);
                             return centred * centred;
                           }));
  }
  v.rstd = each(v.var.size(), [&](size_t s) { return pow(v.var[s] + setting.eps, -0.5); });
  v.xhat = each(count, [&](size_t i) { return (v.x[i] - set(v.mu, i)) * set(v.rstd, i); });
  v.y = each(count, [&](size_t i) { return param(v.gamma, i) * v.xhat[i] + param(v.beta, i); });
  v.d = each(count, [&](size_t i) { return v.dy[i] * param(v.gamma, i); });
  v.m1 = mean_over_sets(layout, v.d);
  v.m2 = mean_over_sets(layout, each(count, [&](size_t i) { return v.d[i] * v.xhat[i]; }));
  v.direct = each(count, [&](size_t i) { return set(v.rstd, i) * v.d[i]; });
  v.mean = each(count, [&](size_t i) {
    return setting.has_mean() ? -set(v.rstd, i) * set(v.m1, i) : Number();
  });
  v.projection = each(count, [&](size_t i) { return -set(v.rstd, i) * v.xhat[i] * set(v.m2, i); });
  v.dgamma = sum_over_params(layout, each(count, [&](size_t i) { return v.dy[i] * v.xhat[i]; }));
  v.dbeta = sum_over_params(layout, v.dy);
  v.dx = v.direct;
  if (setting.is_evaluation()) return v;
  for (size_t i = 0; i < count; ++i) v.dx[i] += v.mean[i] + v.projection[i];
  return v;
}

void add_statistics(Derivation& out, const Layout& layout, const NormValues& v,
                    const Library& library) {
  StepList forward(out, Phase::forward);
  if (out.setting.is_evaluation()) {
    forward.add("mu", layout.per_set, v.mu, "mu = running_mean",
                "Evaluation normalizes with a mean from training, a constant.", library.saved.mean,
                "saved mean");
    forward.add("var", layout.per_set, v.var, "var = running_var",
                "The variance is a constant from training, too.");
  } else if (out.setting.has_mean()) {
    forward.add("mu", layout.per_set, v.mu, "mu = Σ x / m",
                "The mean of each set: taking it away makes y blind to an offset of x.",
                library.saved.mean, "saved mean");
    forward.add("var", layout.per_set, v.var, "var = Σ (x - mu)² / m",
                "The biased variance, divided by m and not by m - 1, since it describes this set "
                "and estimates nothing.");
  } else {
    forward.add("var", layout.per_set, v.var, "var = Σ x² / m",
                "The mean square: RMSNorm takes no mean away, only the scale.");
  }
  forward.add(
      "rstd", layout.per_set, v.rstd, "rstd = 1 / sqrt(var + eps)",
      out.setting.layer == Layer::rms_norm
          ? "One over the root mean square; eps inside the root keeps it finite where all x "
            "are 0."
      : out.setting.is_evaluation()
          ? "One factor per set; eps inside the root keeps it finite where var is 0."
          : "One factor per set; eps inside the root keeps it finite where all x are equal.",
      library.saved.rstd, "saved rstd");
}

void add_forward(Derivation& out, const Layout& layout, const NormValues& v,
                 const Library& library) {
  const Setting& setting = out.setting;
  const Shape& shape = out.inputs.x.shape();
  add_statistics(out, layout, v, library);
  StepList forward(out, Phase::forward);
  forward.add("xhat", shape, v.xhat, setting.has_mean() ? "xhat = (x - mu)·rstd" : "xhat = x·rstd",
              "The normalized values: what the backward needs of x.");
  const bool rms = setting.layer == Layer::rms_norm;
  forward.add("y", shape, v.y, rms ? "y = gamma·xhat" : "y = gamma·xhat + beta",
              rms ? "A learned scale gives back what normalizing took away."
                  : "Learned scale and shift give back what normalizing took away.",
              library.y, "y");
  if (!library.running_mean.defined()) return;
  const Numbers mean = numbers_of(out.inputs.running_mean),
                var = numbers_of(out.inputs.running_var);
  const double m = static_cast<double>(layout.m);
  forward.add("running_mean", layout.per_set,
              each(mean.size(), [&](size_t k) { return 0.9 * mean[k] + 0.1 * v.mu[k]; }),
              "running_mean ← 0.9·running_mean + 0.1·mu",
              "Evaluation will normalize with this average over batches (momentum 0.1).",
              library.running_mean, "running_mean");
  forward.add(
      "running_var", layout.per_set,
      each(var.size(), [&](size_t k) { return 0.9 * var[k] + 0.1 * v.var[k] * m / (m - 1); }),
      "running_var ← 0.9·running_var + 0.1·var·m/(m - 1)",
      "Here the unbiased variance stands, since it estimates that of data not seen.",
      library.running_var, "running_var");
}

void add_terms(Derivation& out, const Layout& layout, const NormValues& v, const Library& library) {
  const Shape& shape = out.inputs.x.shape();
  StepList backward(out, Phase::backward);
  if (out.setting.has_mean()) {
    backward.add("m1", layout.per_set, v.m1, "m1 = Σ d / m",
                 "How far moving the whole set moves the loss; gamma stays inside the sum.");
  }
  backward.add("m2", layout.per_set, v.m2, "m2 = Σ d·xhat / m",
               "How far stretching the whole set moves the loss; gamma stays inside the sum.");
  backward.add("direct", shape, v.direct, "direct = rstd·d",
               out.setting.has_mean() ? "What dx would be if the statistics were constants."
                                      : "What dx would be if rstd were a constant.",
               library.terms.direct, "norm_terms direct");
  if (out.setting.has_mean()) {
    backward.add("mean", shape, v.mean, "mean = -rstd·m1",
                 "Each x moves mu, and mu is taken from all: a common shift changes nothing.",
                 library.terms.mean, "norm_terms mean");
  }
  backward.add("projection", shape, v.projection, "projection = -rstd·xhat·m2",
               out.setting.has_mean()
                   ? "Each x moves var, and rstd scales all: a common stretch changes nothing."
                   : "Each x moves the mean square, and rstd scales all: a common stretch changes "
                     "nothing.",
               library.terms.projection, "norm_terms projection");
}

void add_backward(Derivation& out, const Layout& layout, const NormValues& v,
                  const Library& library) {
  const Setting& setting = out.setting;
  const Shape& shape = out.inputs.x.shape();
  StepList backward(out, Phase::backward);
  backward.add("d", shape, v.d, "d = dy·gamma", "The gradient of xhat, by the chain rule.");
  if (setting.is_evaluation()) {
    backward.add("dx", shape, v.dx, "dx = rstd·d",
                 "The statistics are constants, so that the direct term is all there is.",
                 library.dx, "dx");
  } else {
    add_terms(out, layout, v, library);
    backward.add("dx", shape, v.dx,
                 setting.has_mean() ? "dx = direct + mean + projection = rstd·(d - m1 - xhat·m2)"
                                    : "dx = direct + projection = rstd·(d - xhat·m2)",
                 "x acts on y by itself and through the statistics of its set; the paths add up.",
                 library.dx, "dx");
  }
  backward.add("dgamma", layout.per_param, v.dgamma, "dgamma = Σ dy·xhat",
               "A sum over all elements that share the gamma, over samples too; not divided by m.",
               library.dgamma, "dgamma");
  if (!library.dbeta.defined()) return;
  backward.add("dbeta", layout.per_param, v.dbeta, "dbeta = Σ dy",
               "A sum over all elements that share the beta.", library.dbeta, "dbeta");
}

void add_invariants(Derivation& out, const Layout& layout, const NormValues& v, const Numbers& dx) {
  if (out.setting.is_evaluation()) return;
  if (out.setting.has_mean()) {
    add_invariant(out, "Σ dx = 0 over each set",
                  "Adding one number to the whole set does not change y.",
                  sum_over_sets(layout, dx));
  }
  Numbers sums =
      sum_over_sets(layout, each(dx.size(), [&](size_t i) { return dx[i] * v.xhat[i]; }));
  for (size_t s = 0; out.setting.eps > 0 && s < sums.size(); ++s) {
    const Number cube = v.rstd[s] * v.rstd[s] * v.rstd[s];
    const Number left = static_cast<double>(layout.m) * v.m2[s] * out.setting.eps * cube;
    sums[s] = {sums[s].value, sums[s].error + std::abs(left.value) + left.error};
  }
  add_invariant(out, "Σ dx·xhat = 0 over each set, up to eps: m·m2·eps·rstd³",
                "Stretching the whole set does not change y, but for the eps in the root.", sums);
}

void add_notes(Derivation& out, const Layout& layout) {
  const Setting& setting = out.setting;
  if (setting.is_evaluation()) {
    out.notes.push_back(
        "Evaluation: mean and rstd do not depend on x, so that m1 and m2 do not arise; Σ dx over a "
        "set is not 0. In training dx = rstd·(d - m1 - xhat·m2).");
    return;
  }
  if (setting.has_running()) {
    out.notes.push_back(
        "In evaluation with running statistics the backward is simpler: dx = rstd·d.");
  }
  const char* sums = setting.has_mean() ? "m1 and m2" : "m2";
  const char* outside = setting.has_mean() ? "gamma·rstd·(dy - mean(dy) - xhat·mean(dy·xhat))"
                                           : "gamma·rstd·(dy - xhat·mean(dy·xhat))";
  out.notes.push_back(
      gamma_varies(layout, out.inputs.gamma)
          ? concat("gamma varies over a set, so that it must stay inside ", sums, ": ", outside,
                   " is wrong here.")
          : concat("gamma is one number for the whole set here, so that it may be pulled out of ",
                   sums, ": dx = ", outside, ". Where it varies over a set it may not."));
}

Motion motion_of(bool evaluation, const Layout& layout, const NormValues& v) {
  const size_t count = v.x.size();
  const auto size = [](const Number& number) { return std::abs(number.value); };
  const auto param_terms = [&](auto&& factor) {
    return values_of(sum_over_params(
        layout, each(count, [&](size_t i) { return Number(size(v.dy[i]) * factor(i)); })));
  };
  return {
      .y = v.y,
      .dx = {v.dx,
             each(count,
                  [&](size_t i) {
                    return std::max({size(v.direct[i]), size(v.mean[i]), size(v.projection[i])});
                  })},
      // xhat is of the order of 1; that of equal values is 0, up to rounding on that order.
      .dgamma = {v.dgamma, param_terms([&](size_t i) { return std::max(1.0, size(v.xhat[i])); })},
      .dbeta = {v.dbeta, param_terms([](size_t) { return 1.0; })},
      .scale = each(count, [&](size_t i) {
        return evaluation ? INFINITY : 1 / v.rstd[at(layout.set, i)].value;
      })};
}

}  // namespace

Motion derive_norm(Derivation& out, const Layout& layout, const Library& library) {
  const NormValues v = compute(out.setting, out.inputs, layout);
  add_forward(out, layout, v, library);
  add_backward(out, layout, v, library);
  out.saved.push_back({"x", out.inputs.x, "xhat is computed from it again: that costs no memory."});
  if (library.saved.mean.defined() && out.setting.has_mean())
    out.saved.push_back({"mean", library.saved.mean, "One number per set."});
  out.saved.push_back({"rstd", library.saved.rstd, "One number per set."});
  out.saved.push_back({"gamma", out.inputs.gamma, "For d."});
  add_invariants(out, layout, v, with_library(v.dx, library.dx));
  add_notes(out, layout);
  return motion_of(out.setting.is_evaluation(), layout, v);
}

}  // namespace gradus::explain
