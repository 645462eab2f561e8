// A page of text under construction: headings, paragraphs and blocks of lines, for a terminal or as
// Markdown.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "examples/cli/explain_text.h"

namespace gradus::cli {

class TextPage {
 public:
  explicit TextPage(TextStyle style) : markdown_(style == TextStyle::markdown) {}

  void title(std::string_view text);
  void heading(std::string_view text);
  void step(std::string_view formula);  // a line that stands out
  void paragraph(std::string_view text);
  void item(std::string_view text);
  void line(std::string_view text);  // below a block
  void block(std::string_view title, const std::vector<std::string>& lines);
  const std::string& text() const { return text_; }

 private:
  // Ends with one empty line, unless nothing has been written.
  void separate();

  bool markdown_;
  std::string text_;
};

// Breaks at spaces so that lines have at most `width` characters of UTF-8; lines after the first
// begin with `indent`. Blanks at the start stay.
std::string wrapped(std::string_view text, size_t width, std::string_view indent);

}  // namespace gradus::cli
