#include "nn/compare/report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/build_config.h"

namespace gradus {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFirstExponent = -4;  // of the first bin that is not "exact"

// nlohmann writes what is not finite as null.
Json list_of(const Shape& shape) { return std::vector<int64_t>(shape.begin(), shape.end()); }

Json index_of(int64_t element, const Shape& shape) {
  std::vector<int64_t> index(static_cast<size_t>(shape.rank()));
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    index[static_cast<size_t>(axis)] = element % shape[axis];
    element /= shape[axis];
  }
  return index;
}

// The index, and the value there of each device and of the reference.
Json place_of(const CompareError& error, const Shape& shape, const CompareReport& report) {
  Json place{{"index", index_of(error.worst, shape)}};
  for (size_t i = 0; i < report.devices.size(); ++i) {
    place[to_string(report.devices[i].device)] = error.got.at(i);
  }
  place.update({{"reference", error.want}, {"error", error.error}, {"allowed", error.allowed}});
  return place;
}

Json json_of(const CompareError& error, const Shape& shape, const CompareReport& report) {
  return {{"device", to_string(error.device)},
          {"ok", error.ok},
          {"max_ulp", error.max_ulp},
          {"mean_ulp", error.mean_ulp},
          {"max_relative", error.max_relative},
          {"mean_relative", error.mean_relative},
          {"of_allowed", error.of_allowed},
          {"beyond", error.beyond},
          {"worst", error.worst < 0 ? Json() : place_of(error, shape, report)},
          {"histogram", error.histogram}};
}

Json json_of(const std::optional<CompareDifferences>& differences) {
  if (!differences) return {};
  return {{"got", differences->got},     {"want", differences->want},
          {"error", differences->error}, {"allowed", differences->allowed},
          {"ok", differences->ok},       {"has_power", differences->has_power}};
}

Json json_of(const CompareValue& value, const CompareReport& report) {
  Json errors = Json::array();
  for (const CompareError& error : value.errors) {
    errors.push_back(json_of(error, value.shape, report));
  }
  return {{"name", value.name},
          {"direction", to_string(value.direction)},
          {"dtype", to_string(value.dtype)},
          {"shape", list_of(value.shape)},
          {"errors", errors},
          {"differences", json_of(value.differences)}};
}

Json json_of(const CompareTime& time) {
  return {{"device", to_string(time.device)},
          {"direction", to_string(time.direction)},
          {"seconds", time.seconds},
          {"bytes", time.bytes},
          {"flops", time.flops},
          {"gb_per_s", 1e-9 * static_cast<double>(time.bytes) / time.seconds},
          {"tflop_per_s", 1e-12 * static_cast<double>(time.flops) / time.seconds},
          {"roof", time.roof},
          {"share", time.share}};
}

Json json_of(const CompareRow& row, const CompareReport& report) {
  Json values = Json::array(), times = Json::array();
  for (const CompareValue& value : row.values) values.push_back(json_of(value, report));
  for (const CompareTime& time : row.times) times.push_back(json_of(time));
  return {{"layer", row.layer},
          {"path", row.path},
          {"case", row.case_name},
          {"function", row.function},
          {"shape", list_of(row.shape)},
          {"dtype", to_string(row.dtype)},
          {"reduction", row.reduction},
          {"ok", row.ok()},
          {"values", values},
          {"times", times}};
}

Json json_of(const CompareDevice& device) {
  Json rates = Json::object();
  for (const auto& [dtype, rate] : device.tflop_per_s) rates[std::string(to_string(dtype))] = rate;
  return {{"device", to_string(device.device)},
          {"text", device.text},
          {"copy_gb_per_s", device.copy_gb_per_s},
          {"tflop_per_s", rates}};
}

Json json_of(const CompareParting& parting, const CompareReport& report) {
  Json json{{"step", parting.step},   {"layer", parting.layer},
            {"path", parting.path},   {"direction", to_string(parting.direction)},
            {"value", parting.value}, {"device", to_string(parting.error.device)}};
  json.update(place_of(parting.error, parting.shape, report));
  return json;
}

Json json_of(const CompareTraining& train, const CompareReport& report) {
  Json layers = Json::array(), drift = Json::array();
  for (const CompareTraining::Layer& layer : train.layers) {
    layers.push_back({{"layer", layer.layer},
                      {"path", layer.path},
                      {"direction", to_string(layer.direction)},
                      {"of_allowed", layer.of_allowed},
                      {"step", layer.step}});
  }
  for (const CompareTraining::Drift& at : train.drift) {
    drift.push_back({{"step", at.step},
                     {"loss", at.loss},
                     {"other_loss", at.other_loss},
                     {"parameters", at.parameters}});
  }
  return {{"steps_asked", train.steps_asked},
          {"steps_done", train.steps_done},
          {"batch_size", train.batch_size},
          {"optimizer", train.optimizer},
          {"parted", train.parted ? json_of(*train.parted, report) : Json()},
          {"layers", layers},
          {"drift",
           {{"device", to_string(train.drift_device)},
            {"dtype", to_string(train.drift_dtype)},
            {"steps", drift}}}};
}

}  // namespace

std::string_view to_string(CompareDirection direction) {
  return direction == CompareDirection::forward ? "forward" : "backward";
}

double ulp_edge(int bin) {
  if (bin == 0) return 0;
  if (bin == kUlpBins - 1) return std::numeric_limits<double>::infinity();
  return std::ldexp(1.0, bin - 1 + kFirstExponent);
}

bool CompareValue::ok() const {
  return (!differences || differences->ok) && std::ranges::all_of(errors, &CompareError::ok);
}

bool CompareRow::ok() const { return std::ranges::all_of(values, &CompareValue::ok); }

bool CompareReport::ok() const {
  return std::ranges::all_of(rows, &CompareRow::ok) &&
         !(train && (train->parted || train->diverged));
}

std::string to_json(const CompareReport& report) {
  Json edges = Json::array(), devices = Json::array(), rows = Json::array();
  for (int bin = 0; bin < kUlpBins; ++bin) edges.push_back(ulp_edge(bin));
  for (const CompareDevice& device : report.devices) devices.push_back(json_of(device));
  for (const CompareRow& row : report.rows) rows.push_back(json_of(row, report));
  const Json json{{"schema", kCompareSchema},
                  {"kind", "gradus-compare"},
                  {"version", GRADUS_VERSION},
                  {"what", report.what},
                  {"model", report.model},
                  {"seed", report.seed},
                  {"tolerance", report.tolerance > 0 ? Json(report.tolerance) : Json()},
                  {"reference", "cpu f64"},
                  {"missing", report.missing},
                  {"ok", report.ok()},
                  {"ulp_edges", edges},
                  {"devices", devices},
                  {"rows", rows},
                  {"train", report.train ? json_of(*report.train, report) : Json()}};
  return json.dump(1) + "\n";
}

}  // namespace gradus
