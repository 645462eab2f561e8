// A derivation as text: for a terminal of 80 columns, or as Markdown with the same content.
#pragma once

#include <string>

#include "autograd/explain/derivation.h"

namespace gradus::cli {

enum class TextStyle : uint8_t { terminal, markdown };

std::string explain_text(const explain::Derivation& derivation, TextStyle style);

}  // namespace gradus::cli
