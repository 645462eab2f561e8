// conv2d with a 1x1 window over channels-last tensors: one matrix product per direction.
#include "core/ops/matmul.h"

#include "cuda/conv2d_call.h"

namespace gradus {
namespace {

AnyView matrix(const AnyView& like, void* data, int64_t rows, int64_t columns) {
  AnyView view = like;
  view.data = data;
  view.shape = {rows, columns};
  view.strides = {columns, 1};
  return view;
}

AnyView transposed(AnyView view) {
  std::swap(view.shape[0], view.shape[1]);
  std::swap(view.strides[0], view.strides[1]);
  return view;
}

AnyView pixels_by_channels(const AnyView& like, const Image& image) {
  return matrix(like, image.data, image.n * image.pixels(), image.channels);
}

}  // namespace

void gather_product(Cuda& cuda, const GatherCall& call) {
  const AnyView in = pixels_by_channels(call.w, call.in);
  const AnyView out = pixels_by_channels(call.w, call.out);
  const AnyView w = matrix(call.w, call.w.data, call.w.shape[0], call.w.shape[1]);
  run(cuda, Matmul{in, call.backward ? w : transposed(w), call.bias, out, call.tf32});
}

void wgrad_product(Cuda& cuda, const WgradCall& call) {
  AnyView like = call.dw;
  like.dtype = call.dtype;
  const AnyView x = pixels_by_channels(like, call.x), dy = pixels_by_channels(like, call.dy);
  const AnyView dw = matrix(call.dw, call.dw.data, call.dw.shape[0], call.dw.shape[1]);
  run(cuda, Matmul{transposed(dy), x, {}, dw, call.tf32});
}

}  // namespace gradus
