// Tensor::reshape, permute, slice, expand and their kin: views that share storage and version.
#include <algorithm>
#include <optional>

#include "autograd/ops/sum.h"
#include "autograd/tape.h"

namespace gradus {
namespace {

struct ReshapeNode final : Node {
  Shape x_shape;
  std::string_view name() const override { return "reshape"; }
  void backward(const Tensor& dy, Gradients& grads) override { grads.set(0, dy.reshape(x_shape)); }
};

struct PermuteNode final : Node {
  std::vector<int> inverse;
  std::string_view name() const override { return "permute"; }
  void backward(const Tensor& dy, Gradients& grads) override { grads.set(0, dy.permute(inverse)); }
};

struct SliceNode final : Node {
  Shape x_shape;
  int axis;
  int64_t start, stop, step;
  std::string_view name() const override { return "slice"; }
  void backward(const Tensor& dy, Gradients& grads) override {
    Tensor dx = Tensor::zeros(x_shape, {.dtype = dy.dtype(), .device = dy.device()});
    dx.slice(axis, start, stop, step).copy_(dy);
    grads.set(0, dx);
  }
};

struct ExpandNode final : Node {
  Shape x_shape;
  std::string_view name() const override { return "expand"; }
  void backward(const Tensor& dy, Gradients& grads) override { grads.set(0, sum_to(dy, x_shape)); }
};

// Strides with which the same memory reads as `target`, if there are any: every run of axes of x
// that is merged or split must be contiguous within itself.
std::optional<Strides> view_strides(const Tensor& x, const Shape& target) {
  if (x.numel() == 0) return strides_of(target);
  Strides result = Shape::filled(target.rank(), 1);
  int to = target.rank() - 1;
  int from = x.rank() - 1;
  while (from >= 0) {
    // Collect axes of x, from the back, that form one run.
    int64_t run_stride = x.strides()[from];
    int64_t run_extent = x.shape()[from];
    while (from > 0 &&
           (x.shape()[from - 1] == 1 || x.strides()[from - 1] == run_extent * run_stride)) {
      run_extent *= x.shape()[--from];
    }
    --from;
    int64_t placed = 1;
    while (to >= 0 && (placed < run_extent || target[to] == 1)) {
      result[to] = placed * run_stride;
      placed *= target[to--];
    }
    if (placed != run_extent) return std::nullopt;
  }
  while (to >= 0 && target[to] == 1) --to;  // x of rank 0
  return to < 0 ? std::optional(result) : std::nullopt;
}

Shape resolve_reshape(const Tensor& x, Shape target) {
  int open_axis = -1;
  Shape known = target;
  for (int i = 0; i < target.rank(); ++i) {
    if (target[i] >= 0) continue;
    check(target[i] == -1 && open_axis < 0, "reshape",
          "an extent must be 0 or more, or -1 for one of them, got ", target);
    open_axis = i;
    known[i] = 1;
  }
  const int64_t count = checked_numel(known, "reshape");
  if (open_axis >= 0) {
    check(count > 0 && x.numel() % count == 0, "reshape", "cannot infer -1 in ", target, " from ",
          x);
    target[open_axis] = x.numel() / count;
  } else {
    check(count == x.numel(), "reshape", "cannot read ", x, " as ", target);
  }
  return target;
}

// An extent of -1 keeps x's, counted from the back as broadcasting does.
Shape resolve_expand(const Tensor& x, Shape target) {
  const int added = target.rank() - x.rank();
  for (int i = 0; i < target.rank(); ++i) {
    if (target[i] >= 0) continue;
    check(target[i] == -1 && i >= added, "expand",
          "an extent must be 0 or more, or -1 for an axis of ", x, ", got ", target);
    target[i] = x.size(i - added);
  }
  return target;
}

}  // namespace

Tensor Tensor::reshape(const Shape& shape) const {
  const Shape target = resolve_reshape(*this, shape);
  const std::optional<Strides> strides = view_strides(*this, target);
  if (!strides) return contiguous().reshape(target);
  Tensor y = as_strided(target, *strides, offset());
  if (auto node = make_node<ReshapeNode>(*this)) {
    node->x_shape = this->shape();
    attach(y, std::move(node));
  }
  return y;
}

Tensor Tensor::flatten(int start_axis, int end_axis) const {
  if (rank() == 0) return reshape({1}).flatten(start_axis, end_axis);
  const int first = normalize_axis(start_axis, rank(), "flatten");
  const int last = normalize_axis(end_axis, rank(), "flatten");
  check(first <= last, "flatten", "expected start_axis <= end_axis, got ", first, " and ", last);
  Shape target;
  int64_t merged = 1;
  for (int i = 0; i < rank(); ++i) {
    if (i < first || i > last) {
      target.append(size(i));
    } else {
      merged *= size(i);
      if (i == last) target.append(merged);
    }
  }
  return reshape(target);
}

Tensor Tensor::permute(const std::vector<int>& axes) const {
  check(static_cast<int>(axes.size()) == rank(), "permute", "expected ", rank(), " axes, got ",
        axes.size());
  Shape shape = Shape::filled(rank(), -1);
  Strides strides = shape;
  std::vector<int> inverse(axes.size(), -1);
  for (int i = 0; i < rank(); ++i) {
    const int axis = normalize_axis(axes[static_cast<size_t>(i)], rank(), "permute");
    check(inverse[static_cast<size_t>(axis)] < 0, "permute", "axis ", axis, " is named twice");
    inverse[static_cast<size_t>(axis)] = i;
    shape[i] = this->shape()[axis];
    strides[i] = this->strides()[axis];
  }
  Tensor y = as_strided(shape, strides, offset());
  if (auto node = make_node<PermuteNode>(*this)) {
    node->inverse = std::move(inverse);
    attach(y, std::move(node));
  }
  return y;
}

Tensor Tensor::transpose(int axis0, int axis1) const {
  std::vector<int> axes(static_cast<size_t>(rank()));
  for (int i = 0; i < rank(); ++i) axes[static_cast<size_t>(i)] = i;
  std::swap(axes[static_cast<size_t>(normalize_axis(axis0, rank(), "transpose"))],
            axes[static_cast<size_t>(normalize_axis(axis1, rank(), "transpose"))]);
  return permute(axes);
}

Tensor Tensor::slice(int axis, int64_t start, int64_t stop, int64_t step) const {
  const int d = normalize_axis(axis, rank(), "slice");
  const int64_t extent = size(d), given = start;
  if (start < 0) start += extent;
  if (stop < 0) stop += extent;
  check(step > 0, "slice", "step must be positive, got ", step);
  check(start >= 0 && start <= extent, "slice", "start ", given, " is outside axis ", d, " of ",
        *this);
  stop = std::clamp(stop, start, extent);
  Shape shape = this->shape();
  Strides strides = this->strides();
  shape[d] = start == stop ? 0 : (stop - start - 1) / step + 1;
  if (shape[d] > 1) strides[d] *= step;
  const int64_t first = shape.numel() == 0 ? offset() : offset() + start * this->strides()[d];
  Tensor y = as_strided(shape, strides, first);
  if (auto node = make_node<SliceNode>(*this)) {
    node->x_shape = this->shape();
    node->axis = d;
    node->start = start;
    node->stop = stop;
    node->step = step;
    attach(y, std::move(node));
  }
  return y;
}

Tensor Tensor::expand(const Shape& shape) const {
  const Shape target = resolve_expand(*this, shape);
  check(broadcast_shapes(this->shape(), target, "expand") == target, "expand", *this,
        " does not broadcast to ", target);
  Tensor y = as_strided(target, broadcast_strides(this->shape(), strides(), target), offset());
  if (auto node = make_node<ExpandNode>(*this)) {
    node->x_shape = this->shape();
    attach(y, std::move(node));
  }
  return y;
}

Tensor Tensor::squeeze(int axis) const {
  const int d = normalize_axis(axis, rank(), "squeeze");
  check(size(d) == 1, "squeeze", "axis ", d, " of ", *this, " is not 1");
  Shape target;
  for (int i = 0; i < rank(); ++i) {
    if (i != d) target.append(size(i));
  }
  return reshape(target);
}

Tensor Tensor::unsqueeze(int axis) const {
  const int d = normalize_axis(axis, rank() + 1, "unsqueeze");
  Shape target;
  for (int i = 0; i <= rank(); ++i) {
    if (i == d) target.append(1);
    if (i < rank()) target.append(size(i));
  }
  return reshape(target);
}

}  // namespace gradus
