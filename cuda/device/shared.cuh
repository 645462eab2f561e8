// Shared memory: addresses, 16-byte asynchronous copies into it, matrix loads out of it.
#pragma once

#include <cstdint>

namespace gradus {

// The block's dynamic shared memory, 128-byte aligned.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char gradus_dynamic_shared[];
  return gradus_dynamic_shared;
}

// 32-bit address of shared memory, as the instructions below take it.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Starts copying 16 bytes from `source`, or writing 16 zero bytes where not `valid`. Goes through
// the first-level cache, since overlapping windows read most pixels again.
__device__ __forceinline__ void copy_async(uint32_t destination, const void* source, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(destination), "l"(source), "r"(valid ? 16 : 0)
               : "memory");
}

// The same for 4, 8 or 16 bytes that are read once; 16 go past the first-level cache.
template <int Bytes>
__device__ __forceinline__ void copy_async_once(uint32_t destination, const void* source) {
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"(destination), "l"(source)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                 :
                 : "r"(destination), "l"(source), "n"(Bytes)
                 : "memory");
  }
}

// Closes the group of copies started so far.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most Pending groups of this thread are unfinished.
template <int Pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(Pending) : "memory");
}

// Four 8x8 matrices of 16-bit elements (or 8x4 of 32-bit ones); lane i gives the address of row
// i % 8 of matrix i / 8. Lane l receives words l % 4 of rows l / 4.
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address));
}

// The same with each matrix of 16-bit elements transposed.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address));
}

}  // namespace gradus
