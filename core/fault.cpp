#include "core/fault.h"

#include "core/error.h"

namespace gradus {

void raise(const Fault& fault) {
  switch (fault.kind) {
    case Fault::Kind::none:
      return;
    case Fault::Kind::label:
    case Fault::Kind::nll_label:
      fail(ErrorCode::invalid_argument,
           fault.kind == Fault::Kind::label ? "cross_entropy" : "nll_loss",
           "expected labels in [0, ", fault.limit, "), got ", fault.value, " at index ",
           fault.index);
  }
}

}  // namespace gradus
