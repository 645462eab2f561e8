// The report of `gradus compare` as a page for a browser: a table that sorts, histograms of errors,
// time bars, a roofline, and what lock-step training found.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gradus::cli {

// `report`: the JSON of a comparison, schema 1 (nn/compare/report.h), of any of its devices. Throws
// invalid_argument for another kind or schema.
std::string compare_page(const nlohmann::json& report);

// Throws io where the file cannot be written.
void write_compare_html(const nlohmann::json& report, const std::string& file);

}  // namespace gradus::cli
