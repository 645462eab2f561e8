#include "core/tensor.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "core/launch.h"
#include "core/ops/copy.h"

namespace gradus {
namespace {

// Calls f(position in row-major order, element offset) for each element.
template <class F>
void for_each_offset(const Shape& shape, const Strides& strides, F&& f) {
  Shape index = Shape::filled(shape.rank(), 0);
  const int64_t count = shape.numel();
  int64_t offset = 0;
  for (int64_t i = 0; i < count; ++i) {
    f(i, offset);
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      offset += strides[axis];
      if (++index[axis] < shape[axis]) break;
      offset -= strides[axis] * shape[axis];
      index[axis] = 0;
    }
  }
}

// A view that repeats its elements may have more of them than any memory.
template <class T>
std::vector<T> host_vector(int64_t count) try {
  return std::vector<T>(static_cast<size_t>(count));
} catch (const std::exception&) {  // bad_alloc or length_error
  fail(ErrorCode::out_of_memory, "out of memory", "asked for a vector of ", count, " values of ",
       sizeof(T), " bytes");
}

size_t checked_bytes(const Shape& shape, DType dtype) {
  const int64_t numel = checked_numel(shape, "tensor");
  int64_t bytes = 0;
  check(!__builtin_mul_overflow(numel, size_of(dtype), &bytes), "tensor", "the size of ", dtype,
        shape, " does not fit 63 bits");
  return static_cast<size_t>(bytes);
}

}  // namespace

Tensor::Impl& Tensor::impl() const {
  check(impl_ != nullptr, "tensor", "expected a tensor, got an undefined one");
  return *impl_;
}

Tensor Tensor::empty(const Shape& shape, const TensorOptions& options) {
  const size_t bytes = checked_bytes(shape, options.dtype);
  auto impl = std::make_shared<Impl>();
  impl->storage = Storage::make(options.device, bytes);
  impl->dtype = options.dtype;
  impl->shape = shape;
  impl->strides = strides_of(shape, options.format);
  return Tensor(std::move(impl));
}

Tensor Tensor::full(const Shape& shape, double value, const TensorOptions& options) {
  Tensor result = empty(shape, options);
  launch(Fill{.y = result.raw(), .value = value});
  return result;
}

Tensor Tensor::zeros(const Shape& shape, const TensorOptions& options) {
  return full(shape, 0.0, options);
}

Tensor Tensor::ones(const Shape& shape, const TensorOptions& options) {
  return full(shape, 1.0, options);
}

Tensor Tensor::wrap(void* data, const Shape& shape, const TensorOptions& options) {
  const size_t bytes = checked_bytes(shape, options.dtype);
  check(data != nullptr || bytes == 0, "wrap", "expected memory for ", options.dtype, shape,
        ", got a null pointer");
  auto impl = std::make_shared<Impl>();
  impl->storage = Storage::wrap(options.device, data, bytes);
  impl->dtype = options.dtype;
  impl->shape = shape;
  impl->strides = strides_of(shape, options.format);
  return Tensor(std::move(impl));
}

int64_t Tensor::size(int axis) const { return shape()[normalize_axis(axis, rank(), "size")]; }

TensorOptions Tensor::options() const {
  const bool is_dense = is_contiguous() || is_contiguous(MemoryFormat::channels_last);
  const auto format =
      is_dense ? format_of(shape(), strides(), "options") : MemoryFormat::contiguous;
  return {.dtype = dtype(), .device = device(), .format = format};
}

bool Tensor::is_contiguous(MemoryFormat format) const {
  return is_dense(shape(), strides(), format);
}

AnyView Tensor::raw() const {
  if (impl_ == nullptr) return {};
  char* base = static_cast<char*>(impl_->storage->data());
  return {.data = base + impl_->offset * size_of(impl_->dtype),
          .dtype = impl_->dtype,
          .device = impl_->storage->device(),
          .given = true,
          .shape = impl_->shape,
          .strides = impl_->strides};
}

Tensor Tensor::as_strided(const Shape& shape, const Strides& strides, int64_t offset) const {
  check(shape.rank() == strides.rank() && checked_numel(shape, "as_strided") >= 0, "as_strided",
        "expected a stride for each extent, got ", shape, " and ", strides);
  int64_t last = offset;
  bool overflow = false;
  for (int i = 0; i < shape.rank(); ++i) {
    check(strides[i] >= 0, "as_strided", "strides must not be negative, got ", strides);
    int64_t step = 0;
    overflow = overflow || __builtin_mul_overflow(shape[i] - 1, strides[i], &step) ||
               __builtin_add_overflow(last, step, &last);
  }
  const int64_t capacity = static_cast<int64_t>(storage()->bytes()) / size_of(dtype());
  check(shape.numel() == 0 || (offset >= 0 && !overflow && last < capacity), "as_strided", "shape ",
        shape, " with strides ", strides, " and offset ", offset, " reaches outside a storage of ",
        capacity, " elements");
  auto view = std::make_shared<Impl>();
  view->storage = storage();
  view->offset = offset;
  view->dtype = dtype();
  view->shape = shape;
  view->strides = strides;
  return Tensor(std::move(view));
}

template <class T>
Tensor Tensor::from_vector(const std::vector<T>& values, const Shape& shape,
                           const TensorOptions& options) {
  check(static_cast<int64_t>(values.size()) == checked_numel(shape, "from_vector"), "from_vector",
        "shape ", shape, " needs ", shape.numel(), " values, got ", values.size());
  TensorOptions host = options;
  host.device = kCpu;
  Tensor result = empty(shape, host);
  visit(AllTypes{}, options.dtype, [&](auto type) {
    using To = typename decltype(type)::type;
    To* data = result.raw().as<To>();
    if (result.is_contiguous()) {
      std::ranges::transform(values, data, [](T value) { return convert_to<To>(value); });
      return;
    }
    for_each_offset(shape, result.strides(), [&](int64_t i, int64_t offset) {
      data[offset] = convert_to<To>(values[static_cast<size_t>(i)]);
    });
  });
  return result.to(options.device);
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  const Tensor host = detach().to(kCpu);
  std::vector<T> values = host_vector<T>(numel());
  visit(AllTypes{}, dtype(), [&](auto type) {
    using From = typename decltype(type)::type;
    const From* data = host.raw().as<From>();
    if (host.is_contiguous()) {
      std::transform(data, data + numel(), values.begin(),
                     [](From value) { return convert_to<T>(value); });
      return;
    }
    for_each_offset(shape(), host.strides(), [&](int64_t i, int64_t offset) {
      values[static_cast<size_t>(i)] = convert_to<T>(data[offset]);
    });
  });
  return values;
}

template <class T>
T Tensor::item() const {
  check(numel() == 1, "item", "expected a tensor of one element, got ", *this);
  return to_vector<T>()[0];
}

std::string to_string(const Tensor& tensor) { return to_string(tensor.raw()); }

Tensor empty_like(const Tensor& like) { return Tensor::empty(like.shape(), like.options()); }
Tensor zeros_like(const Tensor& like) { return Tensor::zeros(like.shape(), like.options()); }

template Tensor Tensor::from_vector(const std::vector<float>&, const Shape&, const TensorOptions&);
template Tensor Tensor::from_vector(const std::vector<double>&, const Shape&, const TensorOptions&);
template Tensor Tensor::from_vector(const std::vector<uint8_t>&, const Shape&,
                                    const TensorOptions&);
template Tensor Tensor::from_vector(const std::vector<int32_t>&, const Shape&,
                                    const TensorOptions&);
template Tensor Tensor::from_vector(const std::vector<int64_t>&, const Shape&,
                                    const TensorOptions&);
template std::vector<float> Tensor::to_vector() const;
template std::vector<double> Tensor::to_vector() const;
template std::vector<uint8_t> Tensor::to_vector() const;
template std::vector<int32_t> Tensor::to_vector() const;
template std::vector<int64_t> Tensor::to_vector() const;
template float Tensor::item() const;
template double Tensor::item() const;
template uint8_t Tensor::item() const;
template int32_t Tensor::item() const;
template int64_t Tensor::item() const;

}  // namespace gradus
