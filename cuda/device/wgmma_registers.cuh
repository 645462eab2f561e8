// Hopper's warpgroup-wide TF32 products with one operand in registers (see wgmma.cuh for the other
// and for the accumulators). That one need not run along the sum in shared memory, as TF32 must
// there.
//
// Thread t of the group, with w = t / 32, g = t % 32 / 4, q = t % 4, holds of 64 rows x 8 terms
//   a[0], a[1]  rows 16·w + g and 16·w + g + 8, term q
//   a[2], a[3]  the same rows, term q + 4
#pragma once

#include <cstdint>

namespace gradus {

#define GRADUS_ACC8(i)                                                                        \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7])
#define GRADUS_ACC32(i) GRADUS_ACC8(i), GRADUS_ACC8(i + 8), GRADUS_ACC8(i + 16), GRADUS_ACC8(i + 24)

// c (+)= a · bᵀ over 8 terms; without `add` c is overwritten. The low 13 bits of both are ignored.
// Nothing may write a, nor read c, before the product has been waited for.
template <int Columns>
__device__ __forceinline__ void multiply_rows(float (&c)[Columns / 2], const uint32_t (&a)[4],
                                              uint64_t b, bool add) {
  static_assert(Columns == 64 || Columns == 128);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (Columns == 64) {
    asm volatile(
        "{ .reg .pred add; setp.ne.b32 add, %37, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, add, 1, 1; }"
        : GRADUS_ACC32(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
  } else {
    asm volatile(
        "{ .reg .pred add; setp.ne.b32 add, %69, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, add, 1, 1; }"
        : GRADUS_ACC32(0), GRADUS_ACC32(32)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
  }
#endif
}

#undef GRADUS_ACC8
#undef GRADUS_ACC32

}  // namespace gradus
