// conv2d on CUDA: which kernels an argument struct becomes.
//
// plan_conv_path() says which. What takes everything is an implicit GEMM over channels-last tensors
// whose channels fill whole 16-byte vectors: other tensors (NCHW, odd channel counts, unaligned
// views) are copied to that form in the workspace first, and NCHW results copied back. Each costs
// one more read and write of the tensor, and channels-last avoids both.
#include "core/ops/conv2d.h"

#include "cuda/conv2d_call.h"
#include "cuda/tensor_map.h"

namespace gradus {
namespace {

ConvPath choose_path(const Cuda& cuda, ConvProblem problem) {
  problem.wgmma = has_warpgroup_products(cuda);
  return plan_conv_path(problem);
}

void gather_conv(Cuda& cuda, const GatherCall& call) {
  if (call.out.numel() == 0) return;
  switch (choose_path(cuda, call.problem())) {
    case ConvPath::depthwise:
      return gather_depthwise(cuda, call);
    case ConvPath::first:
      return gather_first(cuda, call);
    case ConvPath::direct:
      return gather_direct(cuda, call);
    case ConvPath::shift:
      return gather_shift(cuda, call);
    case ConvPath::wgmma:
      return gather_wgmma(cuda, call);
    case ConvPath::product:
      return gather_product(cuda, call);
    case ConvPath::halo:
      return gather_halo(cuda, call);
    case ConvPath::gemm:
      return gather_gemm(cuda, call);
  }
}

void wgrad_conv(Cuda& cuda, const WgradCall& call) {
  switch (choose_path(cuda, call.problem())) {
    case ConvPath::depthwise:
      return wgrad_depthwise(cuda, call);
    case ConvPath::first:
      return wgrad_first(cuda, call);
    case ConvPath::direct:
      return wgrad_direct(cuda, call);
    case ConvPath::wgmma:
      return wgrad_wgmma(cuda, call);
    case ConvPath::product:
      return wgrad_product(cuda, call);
    case ConvPath::halo:
      return wgrad_halo(cuda, call);
    case ConvPath::shift:  // not of this direction
    case ConvPath::gemm:
      return wgrad_gemm(cuda, call);
  }
}

}  // namespace

void run(Cuda& cuda, const Conv2dForward& args) {
  const MemoryFormat format = format_of(args.x, args.name);
  gather_conv(cuda, {Image(args.x, format), Image(args.y, format), args.w, args.bias, args.window,
                     static_cast<int>(args.groups), args.tf32, false, args.x.dtype});
}

void run(Cuda& cuda, const Conv2dBackwardInput& args) {
  const MemoryFormat format = format_of(args.dx, args.name);
  gather_conv(cuda, {Image(args.dy, format), Image(args.dx, format), args.w, AnyView(), args.window,
                     static_cast<int>(args.groups), args.tf32, true, args.dy.dtype});
}

void run(Cuda& cuda, const Conv2dBackwardWeight& args) {
  const MemoryFormat format = format_of(args.x, args.name);
  const WgradCall call{Image(args.x, format), Image(args.dy, format),        args.dw,
                       args.window,           static_cast<int>(args.groups), args.tf32,
                       args.x.dtype};
  if (args.dw && args.dw.numel() > 0) wgrad_conv(cuda, call);
  if (args.dbias && args.dbias.numel() > 0) bias_grad(cuda, call, args.dbias);
}

}  // namespace gradus
