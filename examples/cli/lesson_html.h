// The lessons as HTML pages: one per layer, and one with the norms side by side. Each page holds a
// derivation (autograd/explain/derivation.h) for every position of its sliders.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "autograd/explain/derivation.h"

namespace gradus::cli {

// Where no tensor is given: more samples, channels and groups than explain::default_shape() has.
Shape lesson_shape(const explain::Setting& setting);

// The lesson for setting.layer, starting at this setting. `inputs.x` may be undefined: then inputs
// of lesson_shape() are drawn with `seed`; what else is undefined is drawn beside a given x. x has
// at most 600 values, which is what can still be read. Sliders: groups over the divisors of c,
// batch from 1 to n, the size of the window, training or evaluation; as the layer has them, without
// the values at which a variance and eps are 0. Of many values a slider has 24 at most, and fewer
// where the page would be more than some MB: the start, both ends, others evenly between them.
nlohmann::json lesson_data(const explain::Setting& setting, const explain::Inputs& inputs,
                           uint64_t seed);

// All seven layers on one x, dy and gamma [c] of lesson_shape(); sliders over groups and batch.
nlohmann::json norms_data(uint64_t seed);

// Throw io where the file cannot be written.
void write_lesson_html(const std::string& file, const explain::Setting& setting,
                       const explain::Inputs& inputs, uint64_t seed);
void write_norms_html(const std::string& file, uint64_t seed);

}  // namespace gradus::cli
