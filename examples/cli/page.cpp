#include "examples/cli/page.h"

#include <charconv>
#include <cmath>

#include "core/error.h"
#include "examples/cli/html_assets.h"
#include "nn/io/atomic_file.h"

namespace gradus::cli {
namespace {

// Puts `with` in the place of `mark`, which is in the template once.
void fill(std::string& page, std::string_view mark, std::string_view with) {
  const size_t at = page.find(mark);
  check(at != std::string::npos, "page", "page.html has no ", mark);
  page.replace(at, mark.size(), with);
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '<')
      result += "&lt;";
    else if (c == '&')
      result += "&amp;";
    else
      result += c;
  }
  return result;
}

// JSON that cannot end the element it stands in: no </script>, no <!--. A '<' is only in strings.
std::string embedded(const nlohmann::json& data) {
  std::string result;
  for (const char c : data.dump()) {
    if (c == '<')
      result += "\\u003c";
    else
      result += c;
  }
  return result;
}

}  // namespace

std::string_view html_asset(std::string_view name) {
  for (const HtmlAsset& asset : kHtmlAssets) {
    if (asset.name == name) return asset.text;
  }
  fail(ErrorCode::internal, "page", "no such asset: ", name);
}

std::string make_page(std::string_view title, const nlohmann::json& data,
                      std::initializer_list<std::string_view> scripts) {
  std::string page(html_asset("page.html")), script;
  for (const std::string_view name : scripts) script += html_asset(name);
  // From the end on, so that no mark is looked for in what was filled in.
  fill(page, "@SCRIPT@", script);
  fill(page, "@DATA@", embedded(data));
  fill(page, "@STYLE@", html_asset("page.css"));
  fill(page, "@TITLE@", escaped(title));
  return page;
}

void write_page(const std::string& file, std::string_view page) {
  nn::write_atomically("html", file, page);
}

nlohmann::json rounded(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::general, 9);
  std::from_chars(text, end.ptr, value);
  return value;
}

}  // namespace gradus::cli
