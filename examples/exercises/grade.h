// Grades a backward: compares it with gradus's on several inputs and says what is wrong with it.
#pragma once

#include <functional>
#include <string>

#include "autograd/explain/setting.h"
#include "examples/exercises/exercise.h"

namespace exercises {

struct Grade {
  bool passed;
  std::string text;
};

// `file`: where the student writes, for the text.
Grade grade(gradus::explain::Layer layer, const std::function<Gradients(const Input&)>& backward,
            const std::string& file);

}  // namespace exercises
