// Tensor: a shared handle to shape, strides and device-tagged storage, with one opaque slot for
// gradient state. Copying a Tensor copies the handle; clone() copies the data.
//
//   Tensor x = Tensor::from_vector<float>({1, 2, 3, 4}, {2, 2});
//   x.set_requires_grad(true);
//   sum(x * x).backward();
//   x.grad().to_vector<float>();  // {2, 4, 6, 8}
//
// Names and semantics are PyTorch's (https://pytorch.org/docs/stable/tensors.html) where it has
// them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/storage.h"
#include "core/view.h"

namespace gradus {

struct GradState;  // autograd/node.h

struct TensorOptions {
  DType dtype = DType::f32;
  Device device = kCpu;
  MemoryFormat format = MemoryFormat::contiguous;
};

class Tensor {
 public:
  Tensor() = default;  // undefined: defined() is false, raw() is "not given"

  // New tensors without history. Extents must not be negative; rank is 0 to 8.
  static Tensor empty(const Shape& shape, const TensorOptions& options = {});  // uninitialised
  static Tensor zeros(const Shape& shape, const TensorOptions& options = {});
  static Tensor ones(const Shape& shape, const TensorOptions& options = {});
  static Tensor full(const Shape& shape, double value, const TensorOptions& options = {});
  // `values` in row-major order, converted to options.dtype; throws unless their count is the
  // shape's.
  template <class T>
  static Tensor from_vector(const std::vector<T>& values, const Shape& shape,
                            const TensorOptions& options = {.dtype = dtype_of<T>});
  // A view of memory that the caller keeps alive.
  static Tensor wrap(void* data, const Shape& shape, const TensorOptions& options = {});

  bool defined() const { return impl_ != nullptr; }
  explicit operator bool() const { return defined(); }
  const Shape& shape() const { return impl().shape; }
  const Strides& strides() const { return impl().strides; }
  int rank() const { return shape().rank(); }
  int64_t size(int axis) const;  // negative axes count from the back
  int64_t numel() const { return shape().numel(); }
  int64_t nbytes() const { return numel() * size_of(dtype()); }
  DType dtype() const { return impl().dtype; }
  Device device() const { return impl().storage->device(); }
  TensorOptions options() const;  // dtype, device and format (contiguous where dense in neither)
  bool is_contiguous(MemoryFormat format = MemoryFormat::contiguous) const;

  // What kernels get. An undefined tensor gives a view that is not given.
  AnyView raw() const;
  const std::shared_ptr<Storage>& storage() const { return impl().storage; }
  int64_t offset() const { return impl().offset; }  // of the first element, in elements
  // Whether no other handle, no other view and no owner of wrapped memory can see this tensor's
  // memory.
  bool is_sole_owner() const {
    return impl_.use_count() == 1 && storage().use_count() == 1 && !storage()->is_wrapped();
  }
  // Another view of the same storage, without history: the base of every view operation.
  Tensor as_strided(const Shape& shape, const Strides& strides, int64_t offset) const;
  // The same data without history.
  Tensor detach() const { return as_strided(shape(), strides(), offset()); }

  // Elements in row-major order, converted to T; waits for the device and copies from it.
  template <class T>
  std::vector<T> to_vector() const;
  // The value of a tensor of one element.
  template <class T>
  T item() const;

  // Differentiable; defined in autograd/ops/. Views share storage and version with this tensor.
  Tensor reshape(const Shape& shape) const;  // one extent may be -1; copies where a view cannot do
  Tensor flatten(int start_axis = 0, int end_axis = -1) const;
  Tensor permute(const std::vector<int>& axes) const;
  Tensor transpose(int axis0, int axis1) const;
  Tensor slice(int axis, int64_t start, int64_t stop, int64_t step = 1) const;
  Tensor expand(const Shape& shape) const;  // an extent of -1 keeps the axis
  Tensor squeeze(int axis) const;
  Tensor unsqueeze(int axis) const;
  Tensor contiguous(MemoryFormat format = MemoryFormat::contiguous) const;  // itself if it is so
  Tensor clone() const;
  Tensor to(DType dtype) const;    // itself if it is so
  Tensor to(Device device) const;  // itself if it is there
  Tensor cpu() const { return to(kCpu); }

  // Writes in place and raises the storage's version. They throw `autograd` on a tensor with
  // history, on a leaf that requires a gradient and for a source that does, unless under
  // NoGradGuard; nothing is changed then. A source may share memory with this tensor.
  Tensor& zero_();
  Tensor& fill_(double value);
  Tensor& copy_(const Tensor& source);  // broadcasts, converts the dtype, crosses devices
  Tensor& add_(const Tensor& other, double alpha = 1.0);  // this += alpha * other
  Tensor& mul_(double factor);

  // Gradient state; defined in autograd/.
  bool requires_grad() const;  // a leaf that asks for a gradient, or a result that carries history
  Tensor& set_requires_grad(bool value);  // leaves only; true for floating dtypes only
  bool is_leaf() const;
  Tensor grad() const;  // undefined before the first backward
  void set_grad(const Tensor& grad);
  void zero_grad();  // forgets the gradient, so that the next one is written and not added
  // Gradients of this tensor with respect to every leaf that asks for one, added to their grad().
  // Without `dy` the tensor must have one element. The graph is freed unless it is retained.
  void backward(const Tensor& dy = {}, bool retain_graph = false) const;
  // Called with the finished gradient of this tensor during backward; a defined result replaces it.
  using Hook = std::function<Tensor(const Tensor& grad)>;
  void register_hook(Hook hook) const;
  std::shared_ptr<GradState>& grad_state() const { return impl().grad_state; }

 private:
  struct Impl {
    std::shared_ptr<Storage> storage;
    int64_t offset = 0;
    DType dtype = DType::f32;
    Shape shape;
    Strides strides;
    std::shared_ptr<GradState> grad_state;
  };

  explicit Tensor(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  Impl& impl() const;  // throws when undefined

  std::shared_ptr<Impl> impl_;
};

// "f32[8,30,14,14]@cuda:0".
std::string to_string(const Tensor& tensor);

// A new tensor with the shape and the options of `like`.
Tensor empty_like(const Tensor& like);
Tensor zeros_like(const Tensor& like);

extern template Tensor Tensor::from_vector(const std::vector<float>&, const Shape&,
                                           const TensorOptions&);
extern template Tensor Tensor::from_vector(const std::vector<double>&, const Shape&,
                                           const TensorOptions&);
extern template Tensor Tensor::from_vector(const std::vector<uint8_t>&, const Shape&,
                                           const TensorOptions&);
extern template Tensor Tensor::from_vector(const std::vector<int32_t>&, const Shape&,
                                           const TensorOptions&);
extern template Tensor Tensor::from_vector(const std::vector<int64_t>&, const Shape&,
                                           const TensorOptions&);
extern template std::vector<float> Tensor::to_vector() const;
extern template std::vector<double> Tensor::to_vector() const;
extern template std::vector<uint8_t> Tensor::to_vector() const;
extern template std::vector<int32_t> Tensor::to_vector() const;
extern template std::vector<int64_t> Tensor::to_vector() const;
extern template float Tensor::item() const;
extern template double Tensor::item() const;
extern template uint8_t Tensor::item() const;
extern template int32_t Tensor::item() const;
extern template int64_t Tensor::item() const;

}  // namespace gradus
