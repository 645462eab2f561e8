// A derivation as the lessons' scripts read it.
#pragma once

#include <nlohmann/json.hpp>

#include "autograd/explain/derivation.h"

namespace gradus::cli {

// {shape, m, eps, mode, sets: [set of each element], param: [gamma of each element], set: [{m,
// mean, var, rstd, m1, m2}], gamma, beta, dgamma, dbeta, t: {x, dy, d, xhat, y, direct, mean,
// projection, dx, fd}, checks: [{name, value, bound, ok}], slips: [{name, text, error: [wrong dx
// - right dx], largest}], half: {text, x, squares, wrong, right}}; local_response_norm has
// window and t {denom, direct, t, neighbours, ...} instead of sets, softmax2d set: [{max, total,
// s}] and t {direct, shift, ...}. Numbers have 9 significant digits;
// those that are not finite are the texts "inf", "-inf" and "nan". ok is null where a bound is
// infinite, so that it cannot be told.
nlohmann::json lesson_variant(const explain::Derivation& derivation);

}  // namespace gradus::cli
