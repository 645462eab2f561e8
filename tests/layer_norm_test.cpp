#include "autograd/ops/layer_norm.h"

#include "tests/support/op_modes.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(layer_norm);

}  // namespace
}  // namespace gradus
