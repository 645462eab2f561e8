// Self-contained HTML pages: the files of examples/cli/html/, which are compiled into the program,
// around JSON. The pages load nothing, and their own policy forbids it.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace gradus::cli {

// The text of examples/cli/html/NAME. Throws internal for a name that is not there.
std::string_view html_asset(std::string_view name);

// page.html with this title, page.css, the data and the scripts, in this order.
std::string make_page(std::string_view title, const nlohmann::json& data,
                      std::initializer_list<std::string_view> scripts);

// Writes it, whole or not at all; throws io.
void write_page(const std::string& file, std::string_view page);

// 9 significant digits: as many as f32 has, at half the size. "nan", "inf" and "-inf", which JSON
// has no numbers for, are read back by page.js.
nlohmann::json rounded(double value);

}  // namespace gradus::cli
