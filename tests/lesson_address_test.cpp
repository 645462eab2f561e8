// What a page of maps shows and its address: each follows the other.
#include "examples/cli/lesson_html.h"
#include "tests/support/browser.h"

namespace gradus {
namespace {

using namespace test;

std::string lesson_page(explain::Layer layer = explain::Layer::layer_norm) {
  const TempDir dir;
  cli::write_lesson_html(dir.path("lesson.html"), {.layer = layer}, {}, 1);
  return read_text(dir.path("lesson.html"));
}

std::string norms_page() {
  const TempDir dir;
  cli::write_norms_html(dir.path("norms.html"), 1);
  return read_text(dir.path("norms.html"));
}

TEST(LessonAddress, MayNameWhatIsNotThereSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  const auto expect_nothing_chosen = [](const std::string& html, const std::string& address) {
    const LoadedPage page = Browser().load(html, address);
    expect_loaded(page);
    EXPECT_EQ(page.dom.find("class=\"mark\""), std::string::npos) << address;
  };
  const std::string lesson = lesson_page(), norms = norms_page();
  EXPECT_NE(Browser().load(lesson, "cell=1").dom.find("class=\"mark\""), std::string::npos);
  for (const char* cell : {"cell=-1", "cell=1.5", "cell=32", "cell=one"})
    expect_nothing_chosen(lesson, cell);
  for (const char* cell :
       {"layer=rms_norm&cell=-1", "layer=norm&cell=1", "layer=constructor&cell=1"})
    expect_nothing_chosen(norms, cell);
  const std::string softmax = lesson_page(explain::Layer::softmax2d);  // it has no parameters
  const LoadedPage element = Browser().load(softmax, "cell=1&of=gamma");
  expect_loaded(element);
  EXPECT_NE(element.dom.find("class=\"mark\""), std::string::npos);
}

TEST(LessonAddress, AnotherOneInTheOpenPageMayChangeTheThemeSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  const LoadedPage page =
      Browser().load(lesson_page(), "theme=light", "location.hash = 'batch=2&theme=dark';");
  expect_loaded(page);
  EXPECT_NE(page.dom.find("data-theme=\"dark\""), std::string::npos);
  EXPECT_NE(page.dom.find("data-state=\"batch=2\""), std::string::npos);
  EXPECT_NE(page.dom.find(">☀ light</button>"), std::string::npos);
}

// A hundred calls of replaceState in half a minute are an error in some browsers.
TEST(LessonAddress, IsLeftAloneByHoveringSlow) {
  GRADUS_SKIP_WITHOUT_BROWSER();
  const LoadedPage page = Browser().load(lesson_page(), "", R"(
      const root = document.documentElement.dataset, cells = [...document.querySelectorAll('g.cells')];
      const replace = history.replaceState.bind(history);
      let writes = 0;
      history.replaceState = (...all) => { ++writes; replace(...all); };
      for (const cell of cells) cell.dispatchEvent(new PointerEvent('pointerover', {bubbles: true}));
      root.hovering = `${cells.length > 100} ${writes}`;
      cells[9].dispatchEvent(new MouseEvent('click', {bubbles: true}));
      root.clicking = `${writes} ${location.hash.includes('cell=9')}`;)");
  expect_loaded(page);
  EXPECT_EQ(between(page.dom, "data-hovering=\"", "\""), "true 0");
  EXPECT_EQ(between(page.dom, "data-clicking=\"", "\""), "1 true");
}

}  // namespace
}  // namespace gradus
