#include "examples/cli/text_page.h"

#include <fmt/core.h>

namespace gradus::cli {
namespace {

constexpr size_t kColumns = 80;

size_t characters(std::string_view text) {
  size_t count = 0;
  for (const char byte : text) count += (byte & 0xC0) != 0x80;
  return count;
}

}  // namespace

std::string wrapped(std::string_view text, size_t width, std::string_view indent) {
  std::string out, line;
  while (!text.empty()) {
    const size_t end = text.find(' ', text.find_first_not_of(' '));
    const std::string_view word = text.substr(0, end);
    if (!line.empty() && characters(line) + 1 + characters(word) > width) {
      out += line + "\n";
      line = indent;
    } else if (!line.empty()) {
      line += " ";
    }
    line += word;
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return out + line;
}

void TextPage::separate() {
  while (!text_.empty() && !text_.ends_with("\n\n")) text_ += "\n";
}

void TextPage::title(std::string_view text) {
  separate();
  text_ += markdown_ ? fmt::format("# {}\n", text)
                     : fmt::format("{}\n{}\n", text, std::string(characters(text), '='));
}

void TextPage::heading(std::string_view text) {
  separate();
  text_ += markdown_ ? fmt::format("## {}\n", text)
                     : fmt::format("{}\n{}\n", text, std::string(characters(text), '-'));
}

void TextPage::step(std::string_view formula) {
  separate();
  text_ += markdown_ ? fmt::format("**`{}`**\n", formula) : fmt::format("{}\n", formula);
}

void TextPage::paragraph(std::string_view text) {
  if (markdown_) separate();
  text_ += (markdown_ ? std::string(text) : "  " + wrapped(text, kColumns - 2, "  ")) + "\n";
}

void TextPage::item(std::string_view text) {
  if (!text_.ends_with("\n")) text_ += "\n";
  text_ += "- " + (markdown_ ? std::string(text) : wrapped(text, kColumns - 2, "  ")) + "\n";
}

void TextPage::line(std::string_view text) {
  if (markdown_) separate();
  text_ += fmt::format("{}{}\n", markdown_ ? "" : "  ", text);
}

void TextPage::block(std::string_view title, const std::vector<std::string>& lines) {
  if (markdown_ || !title.empty()) separate();
  if (!title.empty())
    text_ += markdown_ ? fmt::format("{}\n\n", title) : fmt::format("{}\n", title);
  if (markdown_) text_ += "```\n";
  for (const std::string& line : lines) text_ += (markdown_ ? "" : "    ") + line + "\n";
  if (markdown_) text_ += "```\n";
}

}  // namespace gradus::cli
