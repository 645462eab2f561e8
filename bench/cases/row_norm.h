// What the cases of layer_norm and rms_norm share: the shapes, and the inputs over them.
#pragma once

#include "bench/cases/op_case.h"

namespace gradus {

struct RowNormVariant {
  std::string name;
  Shape shape;
  int axes = 1;  // normalized
  bool gamma = true;
  bool beta = true;  // of layer_norm
  bool channels_last = false;
  double mean = 0.5;
  double std = 2.0;
  bool benchmark = false;

  Shape normalized() const {
    Shape result;
    for (int axis = shape.rank() - axes; axis < shape.rank(); ++axis) result.append(shape[axis]);
    return result;
  }
};

inline std::vector<RowNormVariant> row_norm_variants() {
  return {
      {.name = "tiny", .shape = {3, 6}},
      {.name = "one_row", .shape = {11}},
      {.name = "rank_3", .shape = {2, 3, 7}},
      {.name = "image_chw", .shape = {3, 2, 3, 4}, .axes = 3},
      {.name = "image_hw", .shape = {2, 3, 4, 4}, .axes = 2},
      {.name = "image_w", .shape = {2, 3, 2, 8}},
      {.name = "image_all", .shape = {2, 3, 2, 2}, .axes = 4},
      {.name = "channels_last_chw", .shape = {3, 5, 4, 3}, .axes = 3, .channels_last = true},
      {.name = "channels_last_all", .shape = {2, 3, 2, 4}, .axes = 4, .channels_last = true},
      {.name = "channels_last_hw", .shape = {2, 3, 4, 4}, .axes = 2, .channels_last = true},
      {.name = "rank_5", .shape = {2, 1, 2, 3, 5}, .axes = 2},
      {.name = "rank_6", .shape = {3, 2, 1, 2, 1, 7}, .axes = 3},
      {.name = "rank_7", .shape = {1, 2, 2, 1, 3, 2, 4}, .axes = 6},
      {.name = "rank_8", .shape = {2, 1, 2, 1, 2, 2, 1, 6}, .axes = 4},
      {.name = "no_gamma", .shape = {5, 12}, .gamma = false},
      {.name = "aligned", .shape = {37, 64}},
      {.name = "warp_and_one", .shape = {70, 33}},
      {.name = "wide", .shape = {9, 1000}},
      {.name = "wide_no_gamma", .shape = {3, 1008}, .gamma = false},
      {.name = "wider", .shape = {5, 1024}},
      {.name = "rows_1024", .shape = {8, 1024}},
      {.name = "row_1808", .shape = {5, 1808}},
      {.name = "rows_2048", .shape = {4, 2048}},
      {.name = "row_4088", .shape = {5, 4088}},
      {.name = "odd", .shape = {4, 4097}},
      {.name = "row_4096", .shape = {6, 4096}},
      {.name = "row_5000", .shape = {7, 5000}},
      {.name = "row_8200", .shape = {9, 8200}},
      {.name = "row_16384", .shape = {3, 16384}},
      {.name = "row_16392", .shape = {3, 16392}},
      {.name = "row_20001", .shape = {2, 20001}},
      {.name = "row_24576", .shape = {2, 24576}},
      {.name = "rows_16400", .shape = {133, 16400}},
      {.name = "row_65536", .shape = {2, 65536}},
      {.name = "row_70000", .shape = {2, 70000}},
      {.name = "offset", .shape = {12, 256}, .mean = 1e4, .std = 1},
      {.name = "many_rows", .shape = {1031, 5}},
      {.name = "rows_large", .shape = {32768, 4096}, .benchmark = true},
      {.name = "rows_small", .shape = {8192, 1024}, .benchmark = true},
      {.name = "chw", .shape = {256, 64, 32, 32}, .axes = 3, .benchmark = true},
      {.name = "chw_channels_last",
       .shape = {256, 64, 32, 32},
       .axes = 3,
       .channels_last = true,
       .benchmark = true},
  };
}

// Without the functions.
inline OpCase row_norm_case(const RowNormVariant& v, bool has_beta) {
  OpCase result;
  result.name = v.name;
  result.benchmark = v.benchmark;
  result.inputs = {{.name = "x",
                    .shape = v.shape,
                    .mean = v.mean,
                    .std = v.std,
                    .channels_last = v.channels_last}};
  const Shape normalized = v.normalized();
  const auto parameter = [&](const char* name, double mean) {
    result.inputs.push_back(
        {.name = name, .shape = normalized, .kind = CaseInput::Kind::parameter, .mean = mean});
  };
  if (v.gamma) parameter("gamma", 1.0);
  if (v.beta && has_beta) parameter("beta", 0.0);
  const int64_t m = normalized.numel();
  result.reduction = std::max(m, v.shape.numel() / m);
  return result;
}

// gamma and beta of a call, given whichever container holds its inputs.
template <class T>
T gamma_of(const RowNormVariant& v, std::span<const T> in) {
  return v.gamma ? in[1] : T();
}
template <class T>
T beta_of(const RowNormVariant& v, std::span<const T> in) {
  return v.beta ? in.back() : T();
}

}  // namespace gradus
