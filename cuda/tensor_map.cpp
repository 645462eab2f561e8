#include "cuda/tensor_map.h"

#include "cuda/check.h"

namespace gradus {
namespace {

// The driver's functions are looked up at run time, so that the library loads without a driver.
template <class Function>
Function* driver_function(const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  cuda_check(cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found),
             name);
  check(address != nullptr, name, "the driver does not have it");
  return reinterpret_cast<Function*>(address);
}

CUtensorMapDataType map_type(MapElement element) {
  if (element.dtype == DType::bf16) return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  if (element.dtype == DType::f16) return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return element.round_tf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

CUtensorMapSwizzle map_swizzle(int row_bytes) {
  return row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
}

void map_check(CUresult status, const char* name) {
  if (status != CUDA_SUCCESS) fail(ErrorCode::cuda, name, "error ", static_cast<int>(status));
}

}  // namespace

CUtensorMap box_map(MapElement element, const void* data, int64_t rows, int64_t columns,
                    int box_rows, int row_bytes) {
  static const auto encode =
      driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  const auto size = static_cast<cuuint64_t>(size_of(element.dtype));
  const cuuint64_t extents[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {extents[0] * size};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(row_bytes / size),
                            static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  CUtensorMap map;
  map_check(encode(&map, map_type(element), 2, const_cast<void*>(data), extents, strides, box,
                   steps, CU_TENSOR_MAP_INTERLEAVE_NONE, map_swizzle(row_bytes),
                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
            "cuTensorMapEncodeTiled");
  return map;
}

CUtensorMap image_map(MapElement element, const void* data, int64_t images, int64_t h, int64_t w,
                      int64_t channels, int box_h, int box_w, int row_bytes) {
  static const auto encode =
      driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  const int64_t size = size_of(element.dtype);
  const auto extent = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const auto box_extent = [](int64_t value) { return static_cast<cuuint32_t>(value); };
  const cuuint64_t extents[] = {extent(channels), extent(w), extent(h), extent(images)};
  const cuuint64_t strides[] = {extent(channels * size), extent(w * channels * size),
                                extent(h * w * channels * size)};
  const cuuint32_t box[] = {box_extent(row_bytes / size), box_extent(box_w), box_extent(box_h), 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  CUtensorMap map;
  map_check(encode(&map, map_type(element), 4, const_cast<void*>(data), extents, strides, box,
                   steps, CU_TENSOR_MAP_INTERLEAVE_NONE, map_swizzle(row_bytes),
                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
            "cuTensorMapEncodeTiled");
  return map;
}

CUtensorMap run_map(MapElement element, const void* data, int64_t images, int64_t image_stride,
                    const MapAxis& h, const MapAxis& w, int64_t channels, int run) {
  static const auto encode =
      driver_function<decltype(cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col");
  const int64_t size = size_of(element.dtype);
  const auto extent = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const cuuint64_t extents[] = {extent(channels), extent(w.extent), extent(h.extent),
                                extent(images)};
  const cuuint64_t strides[] = {extent(w.stride * size), extent(h.stride * size),
                                extent(image_stride * size)};
  const int lower[] = {w.shift, h.shift}, upper[] = {w.upper(), h.upper()};
  const cuuint32_t steps[] = {1, static_cast<cuuint32_t>(w.scale), static_cast<cuuint32_t>(h.scale),
                              1};
  CUtensorMap map;
  map_check(encode(&map, map_type(element), 4, const_cast<void*>(data), extents, strides, lower,
                   upper, static_cast<cuuint32_t>(128 / size), static_cast<cuuint32_t>(run), steps,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
            "cuTensorMapEncodeIm2col");
  return map;
}

}  // namespace gradus
