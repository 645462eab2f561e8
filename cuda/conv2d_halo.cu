// conv2d over halo tiles on CUDA: the launches.
#include "cuda/conv2d_call.h"
#include "cuda/conv2d_halo.h"

namespace gradus {
namespace {

// f(type, whether operands are in two parts).
template <class F>
void visit_halo(DType dtype, bool split, const F& f) {
  if (split) return f(Type<float>{}, std::true_type{});
  visit(TypeList<float, Half, BFloat16>{}, dtype, [&](auto type) { f(type, std::false_type{}); });
}

}  // namespace

void gather_halo(Cuda& cuda, const GatherCall& call) {
  HaloGatherPlan plan = call.rank == 0
                            ? plan_halo_gather(call.problem())
                            : halo_gather_plans(call.problem())[static_cast<size_t>(call.rank)];
  plan.shape.in = call.in.data;
  plan.shape.weights = call.w.data;
  plan.shape.bias = call.bias.data;
  plan.shape.out = call.out.data;
  visit_halo(call.dtype, plan.split, [&](auto type, auto split) {
    launch_halo_gather<typename decltype(type)::type, decltype(split)::value>(cuda, plan);
  });
}

void wgrad_halo(Cuda& cuda, const WgradCall& call) {
  HaloWgradPlan plan = plan_halo_wgrad(call.problem());
  HaloWgrad& p = plan.shape;
  p.x = call.x.data;
  p.dy = call.dy.data;
  const int64_t outputs = call.dy.channels * call.taps() * p.padded;
  Scratch scratch;
  const int64_t size = sizeof(float);
  const size_t partials = scratch.add(plan.slices * outputs * size);
  const size_t bias_sums = scratch.add(call.dbias ? plan.slices * call.dy.channels * size : 0);
  scratch.allocate(cuda);
  p.partials = scratch.at(partials);
  if (call.dbias) p.bias_sums = static_cast<float*>(scratch.at(bias_sums));
  visit_halo(call.dtype, plan.split, [&](auto type, auto split) {
    launch_halo_wgrad<typename decltype(type)::type, decltype(split)::value>(cuda, plan);
  });
  sum_slices(cuda, call.dw.dtype,
             {p.partials, call.dw.data, plan.slices, call.dy.channels, call.c_per_group(), p.padded,
              call.taps()});
  if (call.dbias) sum_bias(cuda, call.dbias, p.bias_sums, plan.slices);
}

}  // namespace gradus
