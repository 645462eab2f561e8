// A comparison as a table for people.
#pragma once

#include "nn/compare/report.h"

namespace gradus::cli {

// The devices and what is missing, in lines of up to 80 characters.
std::string devices_text(const CompareReport& report);
// Where a value is worst: its index, the value of each device and of the reference.
std::string place_text(const CompareError& error, const Shape& shape, const CompareReport& report);
// A paragraph for each value of the row that is beyond its tolerance.
std::string wrong_text(const CompareRow& row, const CompareReport& report);
// Devices, what is missing, one line per layer and dtype, and a paragraph for each value that is
// beyond its tolerance.
std::string to_text(const CompareReport& report);

}  // namespace gradus::cli
