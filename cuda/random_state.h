// The last step of every kernel that draws: counting the call.
#pragma once

#include "core/view.h"

namespace gradus {

class Cuda;

// state[1] += 1, after everything launched so far has read it.
void count_random_call(Cuda& cuda, const AnyView& state);

}  // namespace gradus
