#include "examples/cli/explain_arrays.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/tolerance.h"
#include "nn/io/npz.h"

namespace gradus::cli {
namespace {

using explain::Inputs;
using explain::Layer;
using explain::Setting;

constexpr std::array kTensors = {"x",           "dy", "gamma",  "beta", "running_mean",
                                 "running_var", "dx", "dgamma", "dbeta"};
constexpr std::array kOptions = {"groups", "axes", "eps", "training", "size", "alpha", "k"};

// Whether a file for the layer may hold the tensor or option; beta is both.
bool has(Layer layer, std::string_view name) {
  const Setting setting{.layer = layer};
  const bool response = layer == Layer::local_response_norm;
  if (name == "gamma" || name == "dgamma" || name == "eps") return setting.is_norm();
  if (name == "beta") return setting.has_mean() || response;
  if (name == "dbeta") return setting.has_mean();
  if (name.starts_with("running_") || name == "training") return setting.has_running();
  if (name == "groups") return layer == Layer::group_norm;
  if (name == "axes") return setting.is_row_norm();
  if (name == "size" || name == "alpha" || name == "k") return response;
  return true;  // x, dy, dx
}

Tensor tensor_of(const nn::NpyArray& array) {
  Tensor tensor = Tensor::empty(array.shape, {.dtype = array.dtype});
  if (!array.bytes.empty()) std::memcpy(tensor.raw().data, array.bytes.data(), array.bytes.size());
  if (is_floating(array.dtype)) return tensor;
  return Tensor::from_vector(tensor.to_vector<double>(), array.shape);
}

nn::NpyArray array_of(const Tensor& tensor) {
  const std::vector<double> values = tensor.to_vector<double>();
  const auto bytes = std::as_bytes(std::span(values));
  return {.dtype = DType::f64, .shape = tensor.shape(), .bytes = {bytes.begin(), bytes.end()}};
}

Tensor number(double value) { return Tensor::from_vector<double>({value}, {}); }

void check_name(Layer layer, const std::string& name, const std::string& file) {
  if (std::ranges::find(kOptions, name) != kOptions.end()) return;
  const bool known = std::ranges::find(kTensors, name) != kTensors.end();
  if (known && has(layer, name)) return;
  check(!known, "explain", "'", file, "' holds '", name, "': ", layer, " has no ", name);
  std::string names;
  const auto list = [&](const auto& all) {
    for (const char* one : all) {
      if (has(layer, one)) names += concat(names.empty() ? "" : ", ", one);
    }
  };
  list(kTensors);
  list(kOptions);
  check(false, "explain", "'", file, "' holds '", name, "', which is none of ", layer,
        "'s names: ", names);
}

void put(Arrays& arrays, const std::string& name, const nn::NpyArray& array,
         const std::string& file, Layer layer) {
  check_name(layer, name, file);
  const bool claimed = name == "dx" || name == "dgamma" || name == "dbeta";
  check(!claimed || is_floating(array.dtype), "explain", "'", file, "': ", name, " is ",
        array.dtype, ": a gradient is floating");
  check(arrays.emplace(name, tensor_of(array)).second, "explain", "'", name, "' is given twice");
}

// Of NAME=, which may stand before a file; 0 where there is none.
size_t name_size(const std::string& file) {
  const size_t sign = file.find('=');
  std::error_code ignored;
  const bool none = sign == std::string::npos || file.find('/') < sign || file.ends_with(".npz") ||
                    std::filesystem::exists(file, ignored);
  return none ? 0 : sign + 1;
}

// Without the extents that are 1.
std::vector<int64_t> essence(const Shape& shape) {
  std::vector<int64_t> extents(shape.begin(), shape.end());
  std::erase(extents, 1);
  return extents;
}

// The array in f64, in the shape wanted where only extents of 1 tell the two apart.
Tensor taken(const Arrays& arrays, std::string_view name, const Shape& shape) {
  const auto found = arrays.find(name);
  if (found == arrays.end()) return {};
  const Tensor tensor = found->second.to(DType::f64);
  return essence(tensor.shape()) == essence(shape) ? tensor.reshape(shape) : tensor;
}

}  // namespace

std::string path_of(const std::string& file) { return file.substr(name_size(file)); }

Arrays read_arrays(const std::vector<std::string>& files, Layer layer) {
  Arrays arrays;
  for (const std::string& file : files) {
    if (file.ends_with(".npz")) {
      for (const auto& [name, array] : nn::read_npz(file)) put(arrays, name, array, file, layer);
      continue;
    }
    const size_t size = name_size(file);
    const std::string name = size == 0 ? "x" : file.substr(0, size - 1);
    put(arrays, name, nn::read_npy(path_of(file)), file, layer);
  }
  return arrays;
}

void take_setting(const Arrays& arrays, const std::set<std::string>& given, Setting& setting) {
  const auto take = [&](const std::string& name, auto& value) {
    const auto found = arrays.find(name);
    if (found == arrays.end() || given.contains(name)) return;
    check(found->second.numel() == 1, "explain", name, " must be one number, got ", found->second);
    const double number = found->second.to(DType::f64).reshape({}).item<double>();
    using T = std::remove_reference_t<decltype(value)>;
    const bool fits = std::is_floating_point_v<T> ? std::isfinite(number) && number >= 0
                                                  : number >= 0 && number <= kMostOfSetting;
    value = fits ? static_cast<T>(number) : T();
    check(fits && static_cast<double>(value) == number, "explain", name, " cannot be ", number);
  };
  take("groups", setting.groups);
  take("axes", setting.axes);
  take("eps", setting.eps);
  take("training", setting.training);
  take("size", setting.size);
  take("alpha", setting.alpha);
  take("k", setting.k);
  if (setting.layer == Layer::local_response_norm) take("beta", setting.beta);
}

Inputs inputs_of(const Arrays& arrays, const Setting& setting) {
  const auto x = arrays.find("x");
  check(x != arrays.end(), "explain", "the files hold no x");
  Inputs inputs;
  inputs.x = x->second.to(DType::f64);
  if (setting.is_row_norm() && inputs.x.rank() == 1)  // one row
    inputs.x = inputs.x.reshape({1, inputs.x.size(0)});
  const Shape params = explain::layout_of(setting, inputs.x.shape()).per_param;
  inputs.dy = taken(arrays, "dy", inputs.x.shape());
  inputs.gamma = taken(arrays, "gamma", params);
  if (setting.layer != Layer::local_response_norm) inputs.beta = taken(arrays, "beta", params);
  inputs.running_mean = taken(arrays, "running_mean", params);
  inputs.running_var = taken(arrays, "running_var", params);
  return inputs;
}

explain::Claim claim_of(const Arrays& arrays) {
  const auto find = [&](std::string_view name) {
    const auto found = arrays.find(name);
    return found == arrays.end() ? Tensor() : found->second;
  };
  explain::Claim claim{find("dx"), find("dgamma"), find("dbeta")};
  for (const char* name : {"x", "dy", "gamma"}) {
    const Tensor input = find(name);
    if (input.defined() && unit_roundoff(input.dtype()) > unit_roundoff(claim.inputs))
      claim.inputs = input.dtype();
  }
  return claim;
}

void save_inputs(const std::string& path, const Setting& setting, const Inputs& inputs) {
  nn::NpyArrays arrays;
  const auto put = [&](const char* name, const Tensor& tensor) {
    if (tensor.defined()) arrays.emplace(name, array_of(tensor));
  };
  put("x", inputs.x);
  put("dy", inputs.dy);
  put("gamma", inputs.gamma);
  put("beta", inputs.beta);
  put("running_mean", inputs.running_mean);
  put("running_var", inputs.running_var);
  if (setting.is_norm()) put("eps", number(setting.eps));
  if (setting.layer == Layer::group_norm)
    put("groups", number(static_cast<double>(setting.groups)));
  if (setting.is_row_norm() && setting.axes > 0) put("axes", number(setting.axes));
  if (setting.has_running()) put("training", number(setting.training));
  if (setting.layer == Layer::local_response_norm) {
    put("size", number(static_cast<double>(setting.size)));
    put("alpha", number(setting.alpha));
    put("beta", number(setting.beta));
    put("k", number(setting.k));
  }
  nn::write_npz(path, arrays);
}

}  // namespace gradus::cli
