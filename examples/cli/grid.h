// Small tensors as text.
#pragma once

#include <string>
#include <vector>

#include "core/tensor.h"

namespace gradus::cli {

// "3.1e-16", "0".
std::string magnitude(double value);

// The lines of a grid: one row per leading indices, one column per last index, "[0,1]" before each
// row of tensors of rank 2 or more; rows of more than 76 columns of text go on in the next line. At
// most 24 lines; then one says how many are left out. Numbers have five decimals, large ones one;
// where the largest of the tensor is small or larger still, all have an exponent.
std::vector<std::string> grid(const Tensor& tensor);
// Two grids of one shape, each under its title: side by side where 76 columns are enough.
std::vector<std::string> grids(const std::string& title, const Tensor& tensor,
                               const std::string& other_title, const Tensor& other);
// Elements as the letter of their set: A to Z, then numbers.
std::vector<std::string> set_grid(const Tensor& sets);

}  // namespace gradus::cli
