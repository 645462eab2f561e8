// The independent truth of the tests: every op written as naive loops straight from its formula.
//
//   ref::Array y = ref::batch_norm_eval(x, gamma, beta, eps, mean, var);
#pragma once

#include "tests/support/reference_activation.h"   // IWYU pragma: export
#include "tests/support/reference_array.h"        // IWYU pragma: export
#include "tests/support/reference_conv.h"         // IWYU pragma: export
#include "tests/support/reference_elementwise.h"  // IWYU pragma: export
#include "tests/support/reference_loss.h"         // IWYU pragma: export
#include "tests/support/reference_lrn.h"          // IWYU pragma: export
#include "tests/support/reference_matmul.h"       // IWYU pragma: export
#include "tests/support/reference_norm.h"         // IWYU pragma: export
#include "tests/support/reference_optim.h"        // IWYU pragma: export
#include "tests/support/reference_pool.h"         // IWYU pragma: export
#include "tests/support/reference_reduce.h"       // IWYU pragma: export
#include "tests/support/reference_softmax.h"      // IWYU pragma: export
