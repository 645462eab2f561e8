// What a comparison of layers on the CPU and on CUDA found, and its JSON.
//
//   const CompareReport report = compare(net, batch);
//   std::ofstream("report.json") << to_json(report);
//   return report.ok() ? 0 : 1;
//
// The JSON, schema 1; a number that is not finite is null:
//
//   {"schema": 1,
//    "kind": "gradus-compare",
//    "version": "0.1.0",              of gradus
//    "what": "layers",                "layers": ops by themselves; "model": the layers inside a
//                                     model; "train": lock-step training
//    "model": "",                     name of the model; "" for layers
//    "seed": 0,                       of inputs, upstream gradients and parameters
//    "tolerance": null,               a number where the caller gave one
//    "reference": "cpu f64",          what all errors are against
//    "missing": ["..."],              sentences: what could not be compared here, and why
//    "ok": true,                      within tolerance, all of it, and no training ended early
//    "ulp_edges": [0, 0.0625, 0.125, ..., 65536, null],
//                                     upper ends of the histograms' bins; the first is "exact", the
//                                     last has no end and takes what is not finite
//    "devices": [                     the CPU first, then CUDA where there is a GPU
//     {"device": "cpu", "text": "cpu: avx512, 2 threads",
//      "copy_gb_per_s": 21.5,         the roofs, measured: of a large copy, bytes read and written;
//      "tflop_per_s": {"f32": 0.11}}  of a large matrix product in each dtype compared
//    ],
//    "rows": [                        a layer in one dtype
//     {"layer": "group_norm",         an op, or the kind of a module: "GroupNorm"
//      "path": "",                    of the module in its model: "3.body.0"
//      "case": "slab_odd",            of an op; "own" where a module's own arithmetic is compared
//                                     with what its children gave taken as given
//      "function": "group_norm",      of an op: what of it is called ("gelu" of activation)
//      "shape": [2, 6, 57, 59],       of x
//      "dtype": "f32",                of x
//      "reduction": 9,                the longest sum behind any value, which tolerances come from
//      "ok": true,
//      "values": [                    y, buffers, dx and the gradient of each parameter
//       {"name": "dx",                "y", "running_mean", "dx", "dweight"; "x of 0.body" is what a
//                                     module gives its child, and "dy of 0.body" the gradient for
//                                     what the child gave
//        "direction": "backward",     or "forward"
//        "dtype": "f32", "shape": [2, 6, 57, 59],
//        "errors": [                  of each device, in their order
//         {"device": "cpu", "ok": true,
//          "max_ulp": 1.9, "mean_ulp": 0.2,   where values are added up, of the largest term, as
//          "max_relative": 1e-7, "mean_relative": 2e-8,   they may cancel; else of each value
//          "of_allowed": 0.4,                 the worst error as a share of what is allowed
//          "beyond": 0,                       values beyond what is allowed
//          "worst": null | {"index": [0, 1, 2, 3], "cpu": 1.0, "cuda:0": 1.0, "reference": 1.0,
//                   "error": 1e-7, "allowed": 5e-7},  null where all values are exact
//          "histogram": [3200, ...]}          values in each bin
//        ],
//        "differences": null | {"got": 0.5, "want": 0.5, "error": 1e-12, "allowed": 1e-6,
//                               "ok": true, "has_power": true}
//                                     the gradient in f64 along one direction against the finite
//                                     difference of the forward; has_power: it is not about 0
//       }],
//      "times": [                     of each device and direction that was timed
//       {"device": "cpu", "direction": "forward", "seconds": 1.2e-3,
//        "bytes": 164160, "flops": 273600,   the fewest bytes it can move; its operations
//        "gb_per_s": 0.137, "tflop_per_s": 2.3e-4,
//        "roof": "copy",                     or "products": which of the two binds
//        "share": 0.01}                      the least seconds that the roofs allow / seconds
//      ]}
//    ],
//    "train": null | {                lock-step training
//      "steps_asked": 200, "steps_done": 200, "batch_size": 128, "optimizer": "sgd",
//                                     fewer are done where the two part or, as "missing" says then,
//                                     where the values of both leave the range of f32
//      "parted": null | {"step": 3, "layer": "GroupNorm", "path": "1", "direction": "backward",
//                "value": "dx", "device": "cuda:0", "index": [0, 1, 2, 3], "cpu": 1.0,
//                "cuda:0": 1.0, "reference": 1.0, "error": 0.1, "allowed": 1e-6},
//                                     where the first value is beyond its tolerance; steps from 1
//      "layers": [{"layer": "GroupNorm", "path": "1", "direction": "backward",
//                  "of_allowed": 0.4, "step": 17}],   the worst of all steps, and the step of it
//      "drift": {"device": "cuda:0", "dtype": "f32",  a free run beside the CPU's, without verdict
//        "steps": [{"step": 1, "loss": 2.3, "other_loss": 2.3, "parameters": 1e-7}]}
//    }}                               parameters: |difference| / |parameters|, Euclidean norms
//
// In "train" the rows are those of the last step.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/shape.h"

namespace gradus {

inline constexpr int kCompareSchema = 1;

enum class CompareDirection : uint8_t { forward, backward };
std::string_view to_string(CompareDirection direction);

// Bins: exact; up to 2^-4, 2^-3, ..., 2^16 ulp; beyond, or not finite.
inline constexpr int kUlpBins = 23;
double ulp_edge(int bin);  // infinite for the last

// One device's values against the reference.
struct CompareError {
  Device device;
  bool ok = true;
  int64_t beyond = 0;     // values beyond what is allowed
  int64_t extreme = 0;    // that are not finite, or beyond 2^50, here and in the reference
  double of_allowed = 0;  // the worst error as a share of what is allowed
  double max_ulp = 0, mean_ulp = 0;
  double max_relative = 0, mean_relative = 0;
  int64_t worst = -1;                       // in row-major order; -1 where all values are exact
  double want = 0, error = 0, allowed = 0;  // there
  std::vector<double> got;                  // there, of each device
  std::array<int64_t, kUlpBins> histogram{};
};

// A gradient along one direction: Σ gradient·v in f64 against the finite difference.
struct CompareDifferences {
  bool ok = true;
  bool has_power = true;
  double got = 0, want = 0, error = 0, allowed = 0;
};

struct CompareValue {
  std::string name;
  CompareDirection direction = CompareDirection::forward;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<CompareError> errors;  // one per device
  std::optional<CompareDifferences> differences;
  bool ok() const;
};

struct CompareTime {
  Device device;
  CompareDirection direction = CompareDirection::forward;
  double seconds = 0;
  int64_t bytes = 0, flops = 0;
  std::string roof;  // "copy" or "products"
  double share = 0;
};

struct CompareRow {
  std::string layer, path, case_name, function;
  Shape shape;
  DType dtype = DType::f32;
  int64_t reduction = 1;
  std::vector<CompareValue> values;
  std::vector<CompareTime> times;
  bool ok() const;
};

struct CompareDevice {
  Device device;
  std::string text;
  double copy_gb_per_s = 0;
  std::vector<std::pair<DType, double>> tflop_per_s;
};

// Where lock-step training ended before its last step: at the first value beyond its tolerance, or
// that has left the range in which f32 can be compared on all sides alike.
struct CompareParting {
  int64_t step = 0;  // from 1
  std::string layer, path, value;
  CompareDirection direction = CompareDirection::forward;
  Shape shape;
  CompareError error;
};

struct CompareTraining {
  struct Layer {
    std::string layer, path;
    CompareDirection direction = CompareDirection::forward;
    double of_allowed = 0;
    int64_t step = 0;
  };
  struct Drift {
    int64_t step = 0;
    double loss = 0, other_loss = 0, parameters = 0;
  };
  int64_t steps_asked = 0, steps_done = 0, batch_size = 0;
  std::string optimizer;
  std::optional<CompareParting> parted, diverged;
  std::vector<Layer> layers;
  Device drift_device;
  DType drift_dtype = DType::f32;
  std::vector<Drift> drift;
};

struct CompareReport {
  std::string what = "model", model;
  uint64_t seed = 0;
  double tolerance = 0;  // 0: computed for each value
  std::vector<std::string> missing;
  std::vector<CompareDevice> devices;
  std::vector<CompareRow> rows;
  std::optional<CompareTraining> train;
  bool ok() const;
};

std::string to_json(const CompareReport& report);

}  // namespace gradus
