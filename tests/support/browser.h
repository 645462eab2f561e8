// Pages in a real browser: headless Chromium without network, as a reader would see them.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/process.h"

namespace gradus::test {

// The program of Debian's package chromium, or what goes by these names elsewhere.
inline std::string find_browser() {
  for (const char* path : {"/usr/bin/chromium", "/usr/bin/chromium-browser",
                           "/usr/bin/google-chrome", "/opt/google/chrome/chrome"}) {
    if (std::filesystem::exists(path)) return path;
  }
  return {};
}

#define GRADUS_SKIP_WITHOUT_BROWSER() \
  if (::gradus::test::find_browser().empty()) GTEST_SKIP() << "no chromium on this machine"

// The page as it is printed.
inline std::string on_paper(std::string html) {
  const auto replace_all = [&](std::string_view from, std::string_view to) {
    for (size_t at = 0; (at = html.find(from, at)) != std::string::npos; at += to.size())
      html.replace(at, from.size(), to);
  };
  replace_all("@media print", "@media all");
  replace_all("@media screen", "@media not all");
  return html;
}

struct LoadedPage {
  std::string dom;      // after all scripts ran
  std::string console;  // what the page logged, errors and refused requests included
};

class Browser {
 public:
  // Of the window; Chromium opens none narrower than 500.
  explicit Browser(int width = 1280) : width_(width) {}

  // Loads `html` as a file at #fragment. `script` runs at the end, as a reader's hand: it may click
  // and press keys, and leave what it saw in the DOM.
  LoadedPage load(std::string html, const std::string& fragment = "",
                  const std::string& script = "") const {
    const std::string width =
        "document.documentElement.dataset.width = document.documentElement.clientWidth + ' ' + "
        "document.documentElement.scrollWidth;";
    html.insert(html.rfind("</body>"), "<script>" + width + script + "</script>");
    std::ofstream(dir_.path("page.html")) << html;
    const ProcessResult result = run_process(
        {find_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND",
         "--user-data-dir=" + dir_.path("profile"), "--enable-logging=stderr",
         "--window-size=" + std::to_string(width_) + ",900", "--virtual-time-budget=2000",
         "--dump-dom", "file://" + dir_.path("page.html") + "#" + fragment},
        {.dir = dir_.path()});
    EXPECT_EQ(result.status, 0) << result.err;
    return {result.out, console_lines(result.err)};
  }

 private:
  // Chromium writes the page's messages as [process:CONSOLE:line] "text", source: ...
  static std::string console_lines(const std::string& log) {
    std::string lines;
    for (size_t at = 0; at < log.size();) {
      const size_t end = std::min(log.find('\n', at), log.size());
      const std::string line = log.substr(at, end - at);
      if (line.find(":CONSOLE") != std::string::npos) lines += line + "\n";
      at = end + 1;
    }
    return lines;
  }

  int width_;
  TempDir dir_;
};

// The text between `before` and the next `after` in the DOM; nothing where there is no such place.
inline std::optional<std::string> between(std::string_view text, std::string_view before,
                                          std::string_view after) {
  const size_t from = text.find(before);
  if (from == std::string_view::npos) return std::nullopt;
  const size_t begin = from + before.size(), end = text.find(after, begin);
  if (end == std::string_view::npos) return std::nullopt;
  return std::string(text.substr(begin, end - begin));
}

// What every page must be: free of errors, and of anything that a network would be needed for.
inline void expect_self_contained(std::string_view html) {
  for (const char* part : {"http:", "https:", "//cdn", "@import", "url(", "<link", " src="}) {
    EXPECT_EQ(html.find(part), std::string_view::npos) << part;
  }
  EXPECT_NE(html.find("default-src 'none'"), std::string_view::npos);
}

// The page is not wider than its window.
inline void expect_fits(const LoadedPage& page) {
  const std::string width = between(page.dom, "data-width=\"", "\"").value_or("?");
  const size_t space = width.find(' ');
  EXPECT_EQ(width.substr(0, space), width.substr(space + 1));
}

inline void expect_loaded(const LoadedPage& page) {
  EXPECT_EQ(page.console, "");
  EXPECT_EQ(page.dom.find("data-error"), std::string::npos);
  EXPECT_NE(page.dom.find("</html>"), std::string::npos);
}

}  // namespace gradus::test
