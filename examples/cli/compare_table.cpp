#include "examples/cli/compare_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "core/error.h"
#include "examples/cli/text_page.h"

namespace gradus::cli {
namespace {

// What a line of the table says: one row of the report, or all cases of a function in one dtype.
struct Line {
  std::string name;
  DType dtype = DType::f32;
  std::vector<const CompareRow*> rows;
};

std::string name_of(const CompareRow& row, const CompareReport& report) {
  if (report.what == "layers") {
    return row.function == row.layer ? row.layer : fmt::format("{}: {}", row.layer, row.function);
  }
  const std::string name = row.path.empty() ? row.layer : fmt::format("{} {}", row.path, row.layer);
  return row.case_name.empty() ? name : fmt::format("{} ({})", name, row.case_name);
}

std::vector<Line> lines_of(const CompareReport& report) {
  std::vector<Line> lines;
  std::map<std::pair<std::string, DType>, size_t> known;
  for (const CompareRow& row : report.rows) {
    const std::string name = name_of(row, report);
    // A module that is called twice has two lines.
    const auto key =
        std::pair(report.what == "layers" ? name : std::to_string(lines.size()), row.dtype);
    const auto [at, is_new] = known.emplace(key, lines.size());
    if (is_new) lines.push_back({name, row.dtype, {}});
    lines[at->second].rows.push_back(&row);
  }
  return lines;
}

enum class Part { forward, dx, others };

Part part_of(const CompareValue& value) {
  if (value.direction == CompareDirection::forward) return Part::forward;
  return value.name == "dx" ? Part::dx : Part::others;
}

std::string number(double value) {
  if (value == 0) return "exact";
  if (std::isinf(value)) return "not finite";
  if (value < 0.095) return "<0.1";
  return value < 9.95  ? fmt::format("{:.1f}", value)
         : value < 1e5 ? fmt::format("{:.0f}", value)
                       : fmt::format("{:.0e}", value);
}

// The largest error in ulp on each device, "1.2 / 0.9"; "" where there is no such value.
std::string errors(const Line& line, Part part, size_t devices) {
  std::vector<double> largest(devices, -1);
  for (const CompareRow* row : line.rows) {
    for (const CompareValue& value : row->values) {
      if (part_of(value) != part) continue;
      for (size_t d = 0; d < devices; ++d) {
        const CompareError& error = value.errors[d];
        constexpr double kInfinity = std::numeric_limits<double>::infinity();
        largest[d] = std::max(largest[d], std::isfinite(error.error) ? error.max_ulp : kInfinity);
      }
    }
  }
  std::string text;
  for (const double value : largest) {
    if (value >= 0) text += fmt::format("{}{}", text.empty() ? "" : " / ", number(value));
  }
  return text;
}

double worst_share(const Line& line) {
  double worst = 0;
  for (const CompareRow* row : line.rows) {
    for (const CompareValue& value : row->values) {
      for (const CompareError& error : value.errors) worst = std::max(worst, error.of_allowed);
    }
  }
  return worst;
}

// "ok", "wrong", or "" where nothing was held against finite differences.
std::string differences(const Line& line) {
  std::string text;
  for (const CompareRow* row : line.rows) {
    for (const CompareValue& value : row->values) {
      if (!value.differences) continue;
      if (!value.differences->ok) return "wrong";
      if (value.differences->has_power) text = "ok";
      if (text.empty()) text = "blind";
    }
  }
  return text;
}

// "0.123  45%" of the row that takes longest.
std::string time_text(const Line& line, Device device, CompareDirection direction) {
  const CompareTime* longest = nullptr;
  for (const CompareRow* row : line.rows) {
    for (const CompareTime& time : row->times) {
      if (time.device != device || time.direction != direction) continue;
      if (longest == nullptr || time.seconds > longest->seconds) longest = &time;
    }
  }
  if (longest == nullptr) return "";
  return fmt::format("{:.3g} {:>3.0f}%", 1e3 * longest->seconds, 100 * longest->share);
}

std::string index_text(int64_t element, const Shape& shape) {
  std::string text;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    text = fmt::format("{}{}{}", element % shape[axis], text.empty() ? "" : ",", text);
    element /= shape[axis];
  }
  return fmt::format("[{}]", text);
}

bool has_times(const CompareReport& report) {
  return std::ranges::any_of(report.rows, [](const CompareRow& row) { return !row.times.empty(); });
}

// As wide as what it holds; `group` stands above the first of several columns.
struct Column {
  std::string title;
  std::function<std::string(const Line&)> cell;
  bool right = false;
  std::string group = {};
};

std::vector<Column> columns_of(const CompareReport& report) {
  const size_t devices = report.devices.size();
  std::vector<Column> columns{{"layer", &Line::name},
                              {"dtype", [](const Line& line) { return concat(line.dtype); }}};
  std::string group = devices > 1 ? "largest error in ulp (cpu / cuda)" : "largest error in ulp";
  for (const auto& [title, part] :
       {std::pair("y", Part::forward), {"dx", Part::dx}, {"others", Part::others}}) {
    // Named, since clang 14 captures no name of a structured binding.
    const auto cell = [part = part, devices](const Line& line) {
      return errors(line, part, devices);
    };
    columns.push_back({title, cell, false, std::exchange(group, "")});
  }
  columns.push_back(
      {"allowed", [](const Line& line) { return fmt::format("{:.0f}%", 100 * worst_share(line)); },
       true});
  columns.push_back({"diffs", differences});
  for (const CompareDevice& one : report.devices) {
    group = fmt::format("{}: ms, of roof", to_string(one.device));
    for (const auto direction : {CompareDirection::forward, CompareDirection::backward}) {
      columns.push_back({concat(to_string(direction)),
                         [=, device = one.device](const Line& line) {
                           return time_text(line, device, direction);
                         },
                         true, std::exchange(group, "")});
    }
  }
  columns.push_back({"verdict", [](const Line& line) {
                       const bool ok = std::ranges::all_of(line.rows, &CompareRow::ok);
                       return std::string(ok ? "ok" : "WRONG");
                     }});
  return columns;
}

// Two lines of titles, then a line for each of the table's; a column that nothing has is left out.
std::string table_text(const CompareReport& report) {
  const std::vector<Line> lines = lines_of(report);
  std::vector<std::string> text(2 + lines.size());
  for (const Column& column : columns_of(report)) {
    std::vector<std::string> cells{column.title};
    size_t width = 0;
    for (const Line& line : lines)
      width = std::max(width, cells.emplace_back(column.cell(line)).size());
    if (width == 0) continue;
    width = std::max(width, column.title.size());
    size_t start = text[1].size();
    if (!column.group.empty()) {
      if (!text[0].empty()) start = std::max(start, text[0].size() + 2);
      text[0] = fmt::format("{:<{}}{}", text[0], start, column.group);
    }
    for (size_t k = 0; k < cells.size(); ++k) {
      const std::string cell = column.right ? fmt::format("{:>{}}", cells[k], width)
                                            : fmt::format("{:<{}}", cells[k], width);
      text[k + 1] = fmt::format("{:<{}}{}  ", text[k + 1], start, cell);
    }
  }
  std::string table;
  for (std::string& line : text) {
    line.erase(line.find_last_not_of(' ') + 1);
    table += line + "\n";
  }
  return table;
}

}  // namespace

std::string devices_text(const CompareReport& report) {
  std::string text;
  const auto add = [&](std::string_view line) { text += "  " + wrapped(line, 78, "    ") + "\n"; };
  for (const CompareDevice& device : report.devices) {
    std::string line = device.text;
    if (device.copy_gb_per_s > 0) {
      line += fmt::format("; roofs: copy {:.0f} GB/s, products", device.copy_gb_per_s);
      for (const auto& [dtype, rate] : device.tflop_per_s) {
        line += fmt::format(" {} {:.3g}", to_string(dtype), rate);
      }
      line += " TFLOP/s";
    }
    add(line);
  }
  for (const std::string& sentence : report.missing) add(sentence);
  return text;
}

std::string place_text(const CompareError& error, const Shape& shape, const CompareReport& report) {
  std::string text = fmt::format("at {}:", index_text(error.worst, shape));
  for (size_t d = 0; d < report.devices.size(); ++d) {
    text += fmt::format(" {} {:.9g},", to_string(report.devices[d].device), error.got[d]);
  }
  return text +
         fmt::format(" reference {:.9g}; error {:.3g}, allowed {:.3g}; {} of {} values beyond",
                     error.want, error.error, error.allowed, error.beyond, shape.numel());
}

std::string wrong_text(const CompareRow& row, const CompareReport& report) {
  std::string text;
  const std::string head = fmt::format("{}{}{} {} {}", name_of(row, report),
                                       row.case_name.empty() || report.what != "layers" ? "" : " ",
                                       report.what == "layers" ? row.case_name : "",
                                       to_string(row.dtype), to_string(row.shape));
  for (const CompareValue& value : row.values) {
    for (const CompareError& error : value.errors) {
      if (error.ok) continue;
      text += fmt::format("{}: {} ({}) on {} is beyond its tolerance\n  {}\n", head, value.name,
                          to_string(value.direction), to_string(error.device),
                          place_text(error, value.shape, report));
    }
    if (value.differences && !value.differences->ok) {
      const CompareDifferences& d = *value.differences;
      text += fmt::format(
          "{}: {} (backward) is not the gradient of the forward\n  along one direction: {:.9g} by "
          "backward, {:.9g} by finite differences; allowed {:.3g}\n",
          head, value.name, d.got, d.want, d.allowed);
    }
  }
  return text;
}

std::string to_text(const CompareReport& report) {
  std::string text =
      fmt::format("{}: each by itself, on the same bits, against the CPU in f64\n",
                  report.what == "layers" ? "layers" : fmt::format("layers of {}", report.model));
  text += fmt::format("{}\n{}", devices_text(report), table_text(report));
  std::string wrong;
  size_t judged = 0, beyond = 0;
  for (const CompareRow& row : report.rows) {
    wrong += wrong_text(row, report);
    judged += row.values.empty() ? 0 : 1;
    beyond += row.ok() ? 0 : 1;
  }
  if (!wrong.empty()) text += fmt::format("\n{}", wrong);
  std::string columns = "allowed: the largest error as a share of its tolerance";
  if (has_times(report)) columns += "; of roof: above 100 % where operands came from a cache";
  text += fmt::format("\n{}\n", wrapped(columns + " (docs/compare.md)", 80, "  "));
  const char* rows = report.what == "layers" ? "cases" : "layers";
  return text + (beyond == 0 ? fmt::format("all {} {} are within their tolerances\n", judged, rows)
                             : fmt::format("{} of {} {} are beyond their tolerances\n", beyond,
                                           judged, rows));
}

}  // namespace gradus::cli
