#include "nn/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "core/launch.h"
#include "core/ops/matmul.h"
#include "core/ops/muon.h"
#include "nn/match.h"

namespace gradus::nn {
namespace {

void check_options(const MuonOptions& o) {
  const auto is_number = [](double value) { return std::isfinite(value) && value >= 0; };
  check(is_number(o.weight_decay), "muon", "weight_decay must be 0 or more, got ", o.weight_decay);
  check(o.momentum >= 0 && o.momentum < 1, "muon", "momentum must be 0 or more and below 1, got ",
        o.momentum);
  check(is_number(o.eps) && o.eps > 0, "muon", "eps must be above 0, got ", o.eps);
  check(o.ns_steps >= 1 && o.ns_steps < 100, "muon", "ns_steps must be 1 to 99, got ", o.ns_steps);
  for (const double value : o.ns_coefficients) {
    check(std::isfinite(value), "muon", "ns_coefficients must be finite, got ", value);
  }
}

bool is_matrix(const Tensor& p) { return p.rank() >= 2; }

struct MatrixShape {
  int64_t rows, cols;
  explicit MatrixShape(const Tensor& p)
      : rows(p.size(0)), cols(p.size(0) == 0 ? 0 : p.numel() / p.size(0)) {}
};

double adjust_of(MuonAdjust adjust, const MatrixShape& shape) {
  const auto rows = static_cast<double>(shape.rows), cols = static_cast<double>(shape.cols);
  if (adjust == MuonAdjust::match_rms_adamw) return 0.2 * std::sqrt(std::max(rows, cols));
  return std::sqrt(std::max(1.0, rows / cols));
}

void multiply(const Tensor& a, const Tensor& b, const Tensor& y) {
  launch(Matmul{.a = a.raw(), .b = b.raw(), .y = y.raw()});
}

// Newton-Schulz iterations of the matrices x [batch, rows, cols]; the result may be x or new.
Tensor orthogonal(Tensor x, const MuonOptions& options) {
  const bool is_tall = x.size(1) > x.size(2);
  const int64_t k = std::min(x.size(1), x.size(2));
  const Tensor product = Tensor::empty({x.size(0), k, k}, x.options()),
               square = empty_like(product);
  Tensor next = empty_like(x);
  const auto& [a, b, c] = options.ns_coefficients;
  for (int step = 0; step < options.ns_steps; ++step) {
    const Tensor turned = x.transpose(1, 2);
    multiply(is_tall ? turned : x, is_tall ? x : turned, product);
    multiply(product, product, square);
    launch(MuonPolynomial{.product = product.raw(),
                          .square = square.raw(),
                          .p = square.raw(),
                          .a = a,
                          .b = b,
                          .c = c});
    multiply(is_tall ? x : square, is_tall ? square : x, next);
    std::swap(x, next);
  }
  return x;
}

// The parameters of one dtype: Muon's direction for each, in batches of equal matrices.
class Directions {
 public:
  explicit Directions(std::vector<MuonTensor> tensors) : tensors_(std::move(tensors)) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Shape& shape = tensors_[i].p.shape;
      groups_[{shape[0], shape.numel() / shape[0]}].members.push_back(i);
    }
    const TensorOptions options{.dtype = tensors_.front().buf.dtype,
                                .device = tensors_.front().p.device};
    for (auto& [shape, group] : groups_) {
      const auto count = static_cast<int64_t>(group.members.size());
      point_at(group, Tensor::empty({count, shape.first, shape.second}, options));
    }
  }

  std::span<const MuonTensor> tensors() const { return tensors_; }
  void make_orthogonal(const MuonOptions& options) {
    for (auto& [shape, group] : groups_) point_at(group, orthogonal(group.o, options));
  }

 private:
  struct Group {
    std::vector<size_t> members;
    Tensor o;  // [members, rows, cols]
  };

  void point_at(Group& group, Tensor o) {
    group.o = std::move(o);
    for (size_t i = 0; i < group.members.size(); ++i) {
      const auto at = static_cast<int64_t>(i) * group.o.size(1) * group.o.size(2);
      tensors_[group.members[i]].o =
          group.o.as_strided({group.o.size(1), group.o.size(2)}, {group.o.size(2), 1}, at).raw();
    }
  }

  std::vector<MuonTensor> tensors_;
  std::map<std::pair<int64_t, int64_t>, Group> groups_;
};

std::vector<NamedTensor> joined(MuonSplit split) {
  for (NamedTensor& other : split.others) split.hidden.push_back(std::move(other));
  return std::move(split.hidden);
}

}  // namespace

MuonSplit split_for_muon(Module& model) {
  std::vector<Tensor> gains;  // of norms, which may have any rank, and biases
  for (const Module::Entry& entry : model.modules()) {
    Contents own;
    entry.module->list(own);
    for (const Contents::Item& item : own.tensors) {
      if (item.stored == Stored::acc) gains.push_back(*item.tensor);
    }
  }
  const std::vector<NamedTensor> parameters = model.named_parameters();
  std::vector<size_t> matrices;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& p = parameters[i].tensor;
    const auto is_p = [&](const Tensor& gain) { return is_same(gain, p); };
    if (is_matrix(p) && std::ranges::none_of(gains, is_p)) matrices.push_back(i);
  }
  MuonSplit split;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const bool is_inner = !matrices.empty() && i != matrices.front() && i != matrices.back() &&
                          std::find(matrices.begin(), matrices.end(), i) != matrices.end();
    (is_inner ? split.hidden : split.others).push_back(parameters[i]);
  }
  return split;
}

Muon::Muon(std::vector<NamedTensor> parameters, const MuonOptions& options)
    : Muon(MuonSplit{.hidden = std::move(parameters), .others = {}}, options) {}

Muon::Muon(MuonSplit split, const MuonOptions& options, const AdamWOptions& adamw)
    : Optimizer(joined(split), options.lr),
      options_(options),
      hidden_(split.hidden.size()),
      adamw_lr_(adamw.lr) {
  check_options(options);
  std::vector<bool> is_other;
  for (size_t i = 0; i < parameters().size(); ++i) {
    const NamedTensor& p = parameters()[i];
    is_other.push_back(i >= hidden_);
    if (i >= hidden_) continue;
    check(is_matrix(p.tensor), "muon", "expected parameters of rank 2 or more, but ", p.name,
          " is ", p.tensor, "; give it to AdamW (split_for_muon)");
    TensorOptions buffer = p.tensor.options();
    buffer.dtype = acc_dtype(p.tensor.dtype());
    momentum_buffers_.push_back(Tensor::zeros(p.tensor.shape(), buffer));
  }
  if (!has_others()) return;
  check(std::isfinite(adamw.lr) && adamw.lr >= 0, "muon",
        "expected a learning rate of 0 or more for AdamW, got ", adamw.lr);
  check(options.lr > 0, "muon", "the learning rate must be above 0 where AdamW's depends on it");
  moments_ = AdamMoments("muon",
                         {.beta1 = adamw.betas.first,
                          .beta2 = adamw.betas.second,
                          .eps = adamw.eps,
                          .weight_decay = adamw.weight_decay,
                          .decoupled = true,
                          .lr_scale = adamw.lr / options.lr},
                         parameters(), is_other);
}

std::string Muon::settings() const {
  const auto& [a, b, c] = options_.ns_coefficients;
  std::string text =
      concat("momentum ", options_.momentum, ", weight_decay ", options_.weight_decay,
             ", nesterov ", options_.nesterov, ", eps ", options_.eps, ", ns_steps ",
             options_.ns_steps, ", ns_a ", a, ", ns_b ", b, ", ns_c ", c, ", adjust ",
             options_.adjust == MuonAdjust::original ? "original" : "match_rms_adamw");
  if (has_others()) {  // "lr" last: files were written without it
    text += concat(", adamw_lr ", adamw_lr_, ", adamw_", moments_.text(), ", lr ", options_.lr);
  }
  return text;
}

void Muon::update(const std::vector<size_t>& active, const std::vector<Tensor>& grads) {
  std::vector<AdamTensor> others;
  std::map<DType, std::vector<MuonTensor>> hidden;
  for (const size_t i : active) {
    const Tensor& p = parameters()[i].tensor;
    if (i >= hidden_) {
      others.push_back(moments_.entry(i, p, grads[i], born(i)));
    } else if (p.numel() > 0) {
      hidden[p.dtype()].push_back({.p = p.raw(),
                                   .dp = grads[i].raw(),
                                   .buf = momentum_buffers_[i].raw(),
                                   .o = {},
                                   .adjust = adjust_of(options_.adjust, MatrixShape(p))});
    }
  }
  for (auto& [dtype, tensors] : hidden) {
    Directions directions(std::move(tensors));
    launch(MuonMomentum{.tensors = directions.tensors(),
                        .failed_step = failed_step().raw(),
                        .momentum = options_.momentum,
                        .eps = options_.eps,
                        .nesterov = options_.nesterov});
    directions.make_orthogonal(options_);
    launch(MuonApply{.tensors = directions.tensors(),
                     .lr = lr_tensor().raw(),
                     .failed_step = failed_step().raw(),
                     .weight_decay = options_.weight_decay});
  }
  if (!others.empty()) {
    launch_adam(others, moments_.settings(), lr_tensor(), step_counter(), failed_step());
  }
}

std::vector<NamedTensor> Muon::buffers() const {
  std::vector<NamedTensor> named;
  for (size_t i = 0; i < momentum_buffers_.size(); ++i) {
    named.push_back({"momentum_buffer." + parameters()[i].name, momentum_buffers_[i]});
  }
  for (NamedTensor& moment : moments_.buffers(parameters())) named.push_back(std::move(moment));
  return named;
}

}  // namespace gradus::nn
