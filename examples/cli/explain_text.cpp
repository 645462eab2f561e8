#include "examples/cli/explain_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "examples/cli/grid.h"
#include "examples/cli/text_page.h"

namespace gradus::cli {
namespace {

using namespace explain;  // NOLINT: the names of a derivation's parts

// How many last axes a set of layer_norm or rms_norm runs over.
int row_axes(const Derivation& d) { return d.inputs.gamma.rank(); }

// What the layer normalizes, in a sentence.
std::string sets_in_words(const Derivation& d) {
  switch (d.setting.layer) {
    case Layer::batch_norm:
      return "A set is a channel, over all samples and positions.";
    case Layer::group_norm:
      return "A set is a group of neighbouring channels of one sample.";
    case Layer::layer_norm:
    case Layer::rms_norm:
      return fmt::format("A set is a row: the last {} of x.",
                         row_axes(d) == 1 ? "axis" : fmt::format("{} axes", row_axes(d)));
    case Layer::instance_norm:
      return d.setting.training ? "A set is one channel of one sample."
                                : "A set is a channel, as in batch_norm's evaluation.";
    case Layer::local_response_norm:
      return "A column is the channels at one position; each channel has a window of its own in "
             "it.";
    case Layer::softmax2d:
      return "A set is the channels at one position of one sample.";
  }
  return "";
}

std::string options_in_words(const Derivation& d) {
  const Setting& o = d.setting;
  if (o.layer == Layer::softmax2d) return "";
  if (o.layer == Layer::local_response_norm)
    return fmt::format(", size = {}, alpha = {}, beta = {}, k = {}", o.size, o.alpha, o.beta, o.k);
  std::string text;
  if (o.layer == Layer::group_norm) text += fmt::format(", groups = {}", o.groups);
  if (o.is_row_norm()) text += fmt::format(", axes = {}", row_axes(d));
  text += fmt::format(", eps = {}", o.eps);
  if (o.has_running()) text += o.training ? ", training" : ", evaluation";
  return text;
}

std::string_view in_words(Verdict verdict, std::string_view holds, std::string_view fails) {
  switch (verdict) {
    case Verdict::holds:
      return holds;
    case Verdict::unknown:
      return "cannot tell";
    case Verdict::fails:
      return fails;
    case Verdict::not_finite:
      return "not finite";
  }
  return "";
}

std::string_view equality(Verdict verdict) { return in_words(verdict, "equal", "NOT EQUAL"); }

// The window of each channel, and the mirrored one, drawn: of many channels the first, as in a
// grid.
std::vector<std::string> windows_drawn(const Derivation& d) {
  constexpr int64_t kColumns = 28, kLines = 24;
  const std::vector<int64_t> bounds = d.windows.to_vector<int64_t>();
  const int64_t c = d.windows.size(0), columns = std::min(c, kColumns), rows = std::min(c, kLines);
  const std::string_view rest = columns < c ? "..." : "";
  const int width = std::max(8, static_cast<int>(columns + std::ssize(rest)) + 2);
  std::vector<std::string> lines{fmt::format("channel  {:<{}}{}", "window", width, "mirrored")};
  for (int64_t k = 0; k < rows; ++k) {
    std::string drawn[2];
    for (int side = 0; side < 2; ++side) {
      const size_t at = static_cast<size_t>(4 * k + 2 * side);
      for (int64_t j = 0; j < columns; ++j)
        drawn[side] += j >= bounds[at] && j < bounds[at + 1] ? (j == k ? 'o' : '#') : '.';
      drawn[side] += rest;
    }
    lines.push_back(fmt::format("{:<7}  {:<{}}{}", k, drawn[0], width, drawn[1]));
  }
  if (rows < c)
    lines.push_back(fmt::format("... {} more channel{}", c - rows, c - rows == 1 ? "" : "s"));
  return lines;
}

void write_inputs(TextPage& page, const Derivation& d) {
  page.heading("The input");
  page.paragraph(sets_in_words(d));
  page.block("x", grid(d.inputs.x));
  if (d.windows.defined()) {
    page.paragraph(
        "o is the channel, # its window: whose squares damp it; and mirrored: whom it "
        "damps.");
    page.block("", windows_drawn(d));
  } else {
    page.block(fmt::format("sets of m = {}: elements with one letter {}", d.m,
                           d.setting.is_norm() ? "share their statistics" : "sum to 1 in y"),
               set_grid(d.sets));
  }
  for (const auto& [name, tensor] : {std::pair("gamma", d.inputs.gamma),
                                     {"beta", d.inputs.beta},
                                     {"running_mean", d.inputs.running_mean},
                                     {"running_var", d.inputs.running_var}}) {
    if (tensor.defined()) page.block(name, grid(tensor));
  }
  page.block("dy, the upstream gradient: what the loss says about y", grid(d.inputs.dy));
}

void write_steps(TextPage& page, const Derivation& d, Phase phase) {
  page.heading(phase == Phase::forward ? "Forward" : "Backward");
  for (const Step& step : d.steps) {
    if (step.phase != phase) continue;
    page.step(step.formula);
    page.paragraph(step.why);
    page.block("", grid(step.value));
    if (step.against.empty()) continue;
    page.line(fmt::format("{}: gradus's {} (difference {})", equality(step.verdict()), step.against,
                          magnitude(step.difference)));
  }
}

void write_checks(TextPage& page, const Derivation& d) {
  page.heading("Checks");
  for (const Gradient& gradient : d.gradients) {
    page.step(gradient.name + " against central differences of the forward");
    page.block("", grids("by backward", gradient.value, "by differences", gradient.finite));
    page.line(fmt::format("{}: difference {}, at most {}, where nearest to its bound",
                          equality(gradient.verdict()), magnitude(gradient.difference),
                          magnitude(gradient.bound)));
  }
  for (const Invariant& invariant : d.invariants) {
    page.step(invariant.text);
    page.paragraph(invariant.why);
    page.line(fmt::format("{}: {}, at most {}",
                          in_words(invariant.verdict(), "holds", "DOES NOT HOLD"),
                          magnitude(invariant.value), magnitude(invariant.bound)));
  }
}

void write_half(TextPage& page, const HalfNote& half) {
  page.heading("In half precision");
  page.paragraph(half.text);
  if (!half.x.defined()) return;
  page.block("", grids("x in f16", half.x, "overflowing, in f16", half.squares));
  page.block("", grids("y by way of that", half.wrong, "y, by gradus from the same x", half.right));
}

}  // namespace

std::string explain_text(const Derivation& d, TextStyle style) {
  TextPage page(style);
  page.title(fmt::format("{} of x {}{}", to_string(d.setting.layer), to_string(d.inputs.x.shape()),
                         options_in_words(d)));
  write_inputs(page, d);
  write_steps(page, d, Phase::forward);
  page.heading("Saved for the backward");
  for (const SavedTensor& saved : d.saved)
    page.item(fmt::format("{} {}: {}", saved.name, to_string(saved.value.shape()), saved.why));
  write_steps(page, d, Phase::backward);
  write_checks(page, d);
  page.heading("To keep in mind");
  for (const std::string& note : d.notes) page.item(note);
  write_half(page, d.half);
  return page.text();
}

}  // namespace gradus::cli
