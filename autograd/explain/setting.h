// What a derivation or a diagnosis is about: one normalization with its options, its tensors, and
// which of their elements belong together.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace gradus::explain {

enum class Layer : uint8_t {
  batch_norm,
  group_norm,
  layer_norm,
  instance_norm,
  rms_norm,
  local_response_norm,
  softmax2d
};
inline constexpr std::array<std::string_view, 7> kLayerNames = {
    "batch_norm", "group_norm",          "layer_norm", "instance_norm",
    "rms_norm",   "local_response_norm", "softmax2d"};

std::string_view to_string(Layer layer);
Layer parse_layer(std::string_view name);  // throws invalid_argument naming the choices

struct Setting {
  Layer layer = Layer::batch_norm;
  int64_t groups = 2;    // group_norm
  int axes = 0;          // layer_norm, rms_norm: a set runs over so many last axes; 0: all but one
  double eps = 1e-5;     // of the five norms
  bool training = true;  // batch_norm, instance_norm: false takes the running statistics
  int64_t size = 4;      // local_response_norm, from here on; PyTorch's alpha of 1e-4 would make
  double alpha = 1.0;    // all that there is to see too small to be seen
  double beta = 0.75;
  double k = 1.0;

  // One of the five that share one formula (core/ops/normalization.h).
  bool is_norm() const { return layer < Layer::local_response_norm; }
  bool has_mean() const { return is_norm() && layer != Layer::rms_norm; }
  bool has_running() const { return layer == Layer::batch_norm || layer == Layer::instance_norm; }
  bool is_row_norm() const { return layer == Layer::layer_norm || layer == Layer::rms_norm; }
  // Statistics are constants of the backward.
  bool is_evaluation() const { return has_running() && !training; }
};

// f64 tensors on the CPU; those that the layer does not have are undefined.
struct Inputs {
  Tensor x, dy;        // [n, c, ...]; of layer_norm and rms_norm: rank 2 or more
  Tensor gamma, beta;  // [c]; layer_norm, rms_norm: of the last axes. rms_norm: no beta
  Tensor running_mean, running_var;  // [c]; batch_norm, and instance_norm in evaluation
};

// Which elements belong together. Elements are counted in row-major order of x. The columns of
// local_response_norm and softmax2d, the channels at one position of one sample, are their sets.
struct Layout {
  std::vector<int64_t> set, param, sample;  // of each element; param: the index of its gamma
  int64_t sets = 0;
  int64_t params = 0;   // 0 for layers without gamma
  int64_t samples = 0;  // over which dgamma and dbeta are summed; rows of layer_norm and rms_norm
  int64_t m = 0;        // elements of a set
  Shape per_set;        // [c], [n, g], [n, c] or [rows]: the shape of mean and rstd
  Shape per_param;      // of gamma
};

// Throws invalid_argument for a shape that the layer cannot have.
Layout layout_of(const Setting& setting, const Shape& x);

// Whether some set has more than one gamma, by their values.
bool gamma_varies(const Layout& layout, const Tensor& gamma);

// A shape that fits a screen and shows everything the layer has.
Shape default_shape(const Setting& setting);

// Of the examples drawn where no seed is asked for. With it no term of dx is small beside the
// others in any layer's, so that leaving one out would be seen.
inline constexpr uint64_t kExampleSeed = 7;

// Throws for a tensor, if it is defined, that is not finite.
void check_finite(const Setting& setting, std::string_view what, const Tensor& tensor);

// Throws for a set whose variance is 0, of complete inputs, where eps is 0, too; and for a running
// variance that eps does not make positive.
void check_variance(const Setting& setting, const Inputs& inputs);

// Draws what is undefined, in tenths, so that it can be typed elsewhere: no gamma equals another's
// neighbour, no upstream is constant, running statistics are not those of x. Checks what is given:
// f64, shapes, finite. Only x must be defined.
Inputs complete(const Setting& setting, Inputs inputs, uint64_t seed);
Inputs draw_inputs(const Setting& setting, const Shape& x, uint64_t seed);

}  // namespace gradus::explain
