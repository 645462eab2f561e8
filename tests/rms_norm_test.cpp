#include "autograd/ops/rms_norm.h"

#include "tests/support/op_modes.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(rms_norm);

}  // namespace
}  // namespace gradus
