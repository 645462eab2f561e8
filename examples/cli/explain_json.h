// A derivation as JSON, schema 1:
//
//   {"schema": 1, "layer": "group_norm", "groups": 2, "axes": 0, "eps": 1e-05, "training": true,
//    "size": 4, "alpha": 1.0, "beta": 0.75, "k": 1.0, "m": 6,
//    "inputs": {"x": T, "dy": T, "gamma": T, "beta": T}, "sets": T, "windows": T,
//    "steps": [{"phase": "forward", "name": "mu", "formula": "...", "why": "...", "value": T,
//               "against": "saved mean", "difference": 0.0, "bound": 1e-15}],
//    "saved": [{"name": "x", "value": T, "why": "..."}],
//    "gradients": [{"name": "dx", "value": T, "finite": T, "difference": 1e-10, "bound": 1e-8}],
//    "invariants": [{"text": "...", "why": "...", "value": 0.0, "bound": 1e-15, "holds": true}],
//    "notes": ["..."], "half": {"text": "...", "x": T, "squares": T, "wrong": T, "right": T}}
//
// "difference" and "bound" are of the element where the difference is nearest to its bound.
// "holds" is null where it cannot be told, since the bound is infinite.
// T is {"shape": [2, 4, 3], "values": [...]} in row-major order, with "inf", "-inf" and "nan" as
// texts. Tensors that the layer does not have are left out.
#pragma once

#include <nlohmann/json.hpp>

#include "autograd/explain/derivation.h"

namespace gradus::cli {

nlohmann::ordered_json explain_json(const explain::Derivation& derivation);

}  // namespace gradus::cli
