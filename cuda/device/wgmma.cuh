// Hopper's warpgroup-wide matrix products: 64 x Columns accumulators in the registers of 128
// threads, both operands in shared memory as the copy engine leaves them, in rows of 128 swizzled
// bytes, eight of which make a block of 1024 bytes.
//
// Thread t of the group, with w = t / 32, g = t % 32 / 4, q = t % 4, holds
//   c[4·j + 0, 1]  row 16·w + g,     columns 8·j + 2·q, 8·j + 2·q + 1
//   c[4·j + 2, 3]  row 16·w + g + 8, the same columns
// Layouts: PTX ISA, section "Asynchronous Warpgroup Level Matrix Instructions".
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/half.h"

namespace gradus {

// How an operand lies in shared memory: each row of 128 bytes runs along the sum (flat), or along
// the operand's own extent (upright; 16-bit types only), of which every further 64 elements lie
// `pitch` bytes behind. Every further eight rows lie `eight` bytes behind.
enum class Operand : uint8_t { flat, upright };

template <Operand O>
__device__ __forceinline__ uint64_t describe_operand(uint32_t address, uint32_t pitch,
                                                     uint32_t eight = 1024) {
  const uint64_t leading = O == Operand::flat ? 1 : pitch >> 4;
  return (uint64_t{1} << 62) | (uint64_t{eight >> 4} << 32) | (leading << 16) |
         ((address & 0x3FFFF) >> 4);
}
// A flat operand whose rows are of 128 or of 64 swizzled bytes, starting at any of them: the
// swizzle is of addresses, in which eight rows of 128 bytes, or of 64, repeat it.
template <int RowBytes>
__device__ __forceinline__ uint64_t describe_rows(uint32_t address) {
  static_assert(RowBytes == 128 || RowBytes == 64);
  return (uint64_t{RowBytes == 128 ? 1 : 2} << 62) | (uint64_t{RowBytes * 8 >> 4} << 32) |
         (uint64_t{1} << 16) | ((address & 0x3FFFF) >> 4);
}
// Bytes / 16 from one product's 32 bytes of the sum to the next one's: added to a description.
template <Operand O>
inline constexpr uint64_t kOperandStep = O == Operand::flat ? 32 >> 4 : 2048 >> 4;

// Before the first product, and before one that reads registers that this thread wrote.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most Pending committed groups are unfinished.
template <int Pending>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

#define GRADUS_ACC4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define GRADUS_ACC8(i) GRADUS_ACC4(i), GRADUS_ACC4(i + 4)
#define GRADUS_ACC32(i) GRADUS_ACC8(i), GRADUS_ACC8(i + 8), GRADUS_ACC8(i + 16), GRADUS_ACC8(i + 24)
#define GRADUS_ACC64 GRADUS_ACC32(0), GRADUS_ACC32(32)
#define GRADUS_REGS56                                                                \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55"
#define GRADUS_REGS64 GRADUS_REGS56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define GRADUS_REGS68 GRADUS_REGS64 ", %64, %65, %66, %67"
#define GRADUS_REGS96                                                                  \
  GRADUS_REGS68                                                                        \
  ", %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
  "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define GRADUS_REGS112 \
  GRADUS_REGS96        \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define GRADUS_REGS128                                                                     \
  GRADUS_REGS112                                                                           \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
  "%126, %127"

#define GRADUS_PRODUCT_OF(n, list, a_at, b_at, add_at, type, tail, ...)                            \
  asm volatile("{ .reg .pred add; setp.ne.b32 add, %" #add_at                                      \
               ", 0; wgmma.mma_async.sync.aligned.m64n" #n type " {" list "}, %" #a_at ", %" #b_at \
               ", add, 1, 1" tail "; }"                                                            \
               : __VA_ARGS__                                                                       \
               : "l"(a), "l"(b), "r"(static_cast<int>(add)))
#define GRADUS_PRODUCT(type, tail)                                                                 \
  if constexpr (Columns == 112) {                                                                  \
    GRADUS_PRODUCT_OF(112, GRADUS_REGS56, 56, 57, 58, type, tail, GRADUS_ACC32(0),                 \
                      GRADUS_ACC8(32), GRADUS_ACC8(40), GRADUS_ACC8(48));                          \
  } else if constexpr (Columns == 128) {                                                           \
    GRADUS_PRODUCT_OF(128, GRADUS_REGS64, 64, 65, 66, type, tail, GRADUS_ACC64);                   \
  } else if constexpr (Columns == 136) {                                                           \
    GRADUS_PRODUCT_OF(136, GRADUS_REGS68, 68, 69, 70, type, tail, GRADUS_ACC64, GRADUS_ACC4(64));  \
  } else if constexpr (Columns == 192) {                                                           \
    GRADUS_PRODUCT_OF(192, GRADUS_REGS96, 96, 97, 98, type, tail, GRADUS_ACC64, GRADUS_ACC32(64)); \
  } else if constexpr (Columns == 224) {                                                           \
    GRADUS_PRODUCT_OF(224, GRADUS_REGS112, 112, 113, 114, type, tail, GRADUS_ACC64,                \
                      GRADUS_ACC32(64), GRADUS_ACC8(96), GRADUS_ACC8(104));                        \
  } else {                                                                                         \
    GRADUS_PRODUCT_OF(256, GRADUS_REGS128, 128, 129, 130, type, tail, GRADUS_ACC64,                \
                      GRADUS_ACC32(64), GRADUS_ACC32(96));                                         \
  }

// c (+)= a · bᵀ over 32 bytes of the sum; without `add` c is overwritten. T: float (TF32: the low
// 13 bits are ignored), Half, BFloat16.
template <class T, int Columns, Operand O>
__device__ __forceinline__ void multiply_group(float (&c)[Columns / 2], uint64_t a, uint64_t b,
                                               bool add) {
  static_assert(Columns == 112 || Columns == 128 || Columns == 136 || Columns == 192 ||
                Columns == 224 || Columns == 256);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (sizeof(T) == 4) {
    GRADUS_PRODUCT("k8.f32.tf32.tf32", "");
  } else if constexpr (std::is_same_v<T, Half> && O == Operand::flat) {
    GRADUS_PRODUCT("k16.f32.f16.f16", ", 0, 0");
  } else if constexpr (std::is_same_v<T, Half>) {
    GRADUS_PRODUCT("k16.f32.f16.f16", ", 1, 1");
  } else if constexpr (O == Operand::flat) {
    GRADUS_PRODUCT("k16.f32.bf16.bf16", ", 0, 0");
  } else {
    GRADUS_PRODUCT("k16.f32.bf16.bf16", ", 1, 1");
  }
#endif
}

#undef GRADUS_ACC4
#undef GRADUS_ACC8
#undef GRADUS_ACC32
#undef GRADUS_ACC64
#undef GRADUS_REGS56
#undef GRADUS_REGS64
#undef GRADUS_REGS68
#undef GRADUS_REGS96
#undef GRADUS_REGS112
#undef GRADUS_REGS128
#undef GRADUS_PRODUCT_OF
#undef GRADUS_PRODUCT

// Writes four 8x8 matrices of 16-bit elements, each transposed: lane i gives the address of row i %
// 8 of matrix i / 8, and holds words l % 4 of columns l / 4 like an accumulator.
__device__ __forceinline__ void store_matrices_transposed(uint32_t address,
                                                          const uint32_t (&words)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
#endif
}

// Writes N = 2 or 4 such matrices as they are, to the rows whose addresses the first N * 8 lanes
// give.
template <int N>
__device__ __forceinline__ void store_matrices(uint32_t address, const uint32_t (&words)[N]) {
  static_assert(N == 2 || N == 4);
#if __CUDA_ARCH__ >= 900
  if constexpr (N == 4) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};"
                 :
                 : "r"(address), "r"(words[0]), "r"(words[1])
                 : "memory");
  }
#endif
}

// Registers of each thread of this warpgroup from here on: given up or asked for.
template <int Count>
__device__ __forceinline__ void shrink_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
#endif
}
template <int Count>
__device__ __forceinline__ void grow_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
#endif
}

}  // namespace gradus
