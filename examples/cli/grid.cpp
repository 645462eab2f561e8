#include "examples/cli/grid.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace gradus::cli {
namespace {

constexpr size_t kWidth = 76, kLines = 24;  // of a grid

// "[0,1] " before the cells of a row; nothing for vectors.
std::string row_label(const Shape& shape, int64_t row) {
  std::string text;
  for (int axis = shape.rank() - 2; axis >= 0; --axis) {
    text = fmt::format("{}{}{}", row % shape[axis], text.empty() ? "" : ",", text);
    row /= shape[axis];
  }
  return text.empty() ? "" : "[" + text + "] ";
}

std::vector<std::string> cell_grid(const Shape& shape, const std::vector<std::string>& cells) {
  const int64_t columns = shape.rank() == 0 ? 1 : shape[shape.rank() - 1];
  const int64_t rows = std::ssize(cells) / std::max<int64_t>(columns, 1);
  size_t width = 0, label = 0;
  for (const std::string& cell : cells) width = std::max(width, cell.size());
  for (int64_t row = 0; row < rows; ++row) label = std::max(label, row_label(shape, row).size());
  std::vector<std::string> lines;
  for (int64_t row = 0; row < rows; ++row) {
    std::string line = fmt::format("{:<{}}", row_label(shape, row), label);
    for (int64_t column = 0; column < columns; ++column) {
      if (column > 0 && line.size() + 1 + width > kWidth) {
        lines.push_back(std::exchange(line, std::string(label, ' ')));
      }
      line += fmt::format(" {:>{}}", cells[static_cast<size_t>(row * columns + column)], width);
    }
    lines.push_back(line);
  }
  if (lines.size() > kLines) {
    const size_t more = lines.size() - kLines;
    lines.resize(kLines);
    lines.push_back(fmt::format("... {} more line{}", more, more == 1 ? "" : "s"));
  }
  return lines;
}

// Whether five decimals show hardly a digit of the largest value, or more digits than fit.
bool needs_exponents(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values)
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  return largest != 0 && (largest < 0.01 || largest >= 1e5);
}

std::string digits(double value, bool exponents) {
  if (std::isnan(value)) return "nan";  // no -nan
  if (exponents) return fmt::format("{:.4e}", value == 0 ? 0.0 : value);
  const std::string text = fmt::format("{:.{}f}", value, std::abs(value) < 1000 ? 5 : 1);
  if (text.find_first_not_of("-0.") == std::string::npos) return "0.00000";  // no -0.00000
  return text;
}

}  // namespace

std::string magnitude(double value) {
  if (std::isnan(value)) return "nan";  // no -nan
  return value == 0 ? "0" : fmt::format("{:.1e}", value);
}

std::vector<std::string> grid(const Tensor& tensor) {
  const std::vector<double> values = tensor.to_vector<double>();
  const bool exponents = needs_exponents(values);
  std::vector<std::string> cells;
  for (const double value : values) cells.push_back(digits(value, exponents));
  return cell_grid(tensor.shape(), cells);
}

std::vector<std::string> grids(const std::string& title, const Tensor& tensor,
                               const std::string& other_title, const Tensor& other) {
  constexpr size_t kGap = 3;
  std::vector<std::string> left = grid(tensor), right = grid(other);
  left.insert(left.begin(), title);
  right.insert(right.begin(), other_title);
  size_t width = 0, other_width = 0;
  for (const std::string& line : left) width = std::max(width, line.size());
  for (const std::string& line : right) other_width = std::max(other_width, line.size());
  if (width + kGap + other_width > kWidth) {
    left.insert(left.end(), right.begin(), right.end());
    return left;
  }
  for (size_t i = 0; i < left.size(); ++i)
    left[i] = fmt::format("{:<{}}{}", left[i], width + kGap, right[i]);
  return left;
}

std::vector<std::string> set_grid(const Tensor& sets) {
  const std::vector<int64_t> numbers = sets.to_vector<int64_t>();
  const bool letters = *std::ranges::max_element(numbers) < 26;
  std::vector<std::string> cells;
  for (const int64_t number : numbers)
    cells.push_back(letters ? std::string(1, static_cast<char>('A' + number))
                            : fmt::format("{}", number));
  return cell_grid(sets.shape(), cells);
}

}  // namespace gradus::cli
