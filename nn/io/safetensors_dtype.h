// The format's names of the dtypes, shared by its reader and its writer.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <string_view>

#include "core/dtype.h"

namespace gradus::nn::safetensors {

static_assert(std::endian::native == std::endian::little, "the data section is little-endian");

inline constexpr std::string_view kMetadataKey = "__metadata__";
inline constexpr int64_t kLengthBytes = 8;
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

struct NamedDType {
  DType dtype;
  std::string_view name;
};

// In the order in which the format's own writers lay out the data: by falling alignment.
inline constexpr std::array<NamedDType, 7> kDTypes{{{DType::i64, "I64"},
                                                    {DType::f64, "F64"},
                                                    {DType::f32, "F32"},
                                                    {DType::i32, "I32"},
                                                    {DType::bf16, "BF16"},
                                                    {DType::f16, "F16"},
                                                    {DType::u8, "U8"}}};

inline const NamedDType* find_dtype(DType dtype) {
  return std::ranges::find(kDTypes, dtype, &NamedDType::dtype);
}

inline std::optional<DType> find_dtype(std::string_view name) {
  const auto found = std::ranges::find(kDTypes, name, &NamedDType::name);
  return found == kDTypes.end() ? std::nullopt : std::optional(found->dtype);
}

}  // namespace gradus::nn::safetensors
