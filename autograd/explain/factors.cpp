#include "autograd/explain/factors.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/error.h"

namespace gradus::explain {
namespace {

class FactorReader {
 public:
  FactorReader(const Problem& p, const std::vector<Term>& terms, const Values& factors,
               const Values& claimed, double allowed)
      : p_(p), terms_(terms), factors_(factors), claimed_(claimed), allowed_(allowed) {}

  FactorSlip read() const {
    for (const auto& reading : {&FactorReader::signs, &FactorReader::missing, &FactorReader::scale,
                                &FactorReader::count, &FactorReader::one_term}) {
      if (const std::optional<FactorSlip> slip = (this->*reading)()) return *slip;
    }
    std::string text = "it is not the sum of its terms, but";
    for (size_t t = 0; t < terms_.size(); ++t)
      text += concat(t == 0 ? " " : " + ", rounded_factor(factors_[t]), "·", terms_[t].name);
    return {Slip::wrong_coefficients, text};
  }

 private:
  // Whether these factors give the claimed gradient.
  bool gives(const Values& factors) const {
    for (size_t i = 0; i < claimed_.size(); ++i) {
      double sum = 0;
      for (size_t t = 0; t < terms_.size(); ++t) sum += factors[t] * terms_[t].values[i];
      if (!(std::abs(sum - claimed_[i]) <= allowed_)) return false;
    }
    return true;
  }

  std::string names_of(const Values& factors, double wanted) const {
    std::string names;
    for (size_t t = 0; t < terms_.size(); ++t)
      if (factors[t] == wanted) names += (names.empty() ? "" : " and ") + terms_[t].name;
    return names;
  }

  Values rounded() const {
    Values factors = factors_;
    for (double& factor : factors) factor = std::round(factor);
    return factors;
  }

  std::optional<FactorSlip> signs() const {
    const Values factors = rounded();
    if (!std::ranges::all_of(factors, [](double f) { return std::abs(f) == 1; })) return {};
    if (!gives(factors)) return {};
    if (std::ranges::all_of(factors, [](double f) { return f == -1; }))
      return FactorSlip{Slip::wrong_sign, "the sign of it all is turned"};
    const std::string names = names_of(factors, -1);
    return FactorSlip{Slip::wrong_sign, "the sign of " + names + " is turned"};
  }

  std::optional<FactorSlip> missing() const {
    const Values factors = rounded();
    if (!std::ranges::all_of(factors, [](double f) { return f == 0 || std::abs(f) == 1; }))
      return {};
    if (!gives(factors)) return {};
    std::string text = names_of(factors, 0) + " missing";
    const std::string turned = names_of(factors, -1);
    if (!turned.empty()) text += ", and the sign of " + turned + " turned";
    const std::string names = names_of(factors, 0);
    const Slip slip = names == "direct"       ? Slip::direct_missing
                      : names == "mean"       ? Slip::mean_missing
                      : names == "projection" ? Slip::projection_missing
                                              : Slip::wrong_coefficients;
    return FactorSlip{slip, text};
  }

  std::optional<FactorSlip> scale() const {
    const double factor = factors_[0];
    if (!gives(Values(factors_.size(), factor))) return {};
    return FactorSlip{Slip::wrong_scale, concat("it is ", rounded_factor(factor),
                                                " times the right gradient", as_number(factor))};
  }

  // All sums divided by another number than m.
  std::optional<FactorSlip> count() const {
    if (terms_.size() < 2 || !p_.setting.is_norm() || factors_[1] <= 0) return {};
    const double m = static_cast<double>(p_.layout.m);
    const double counted = std::round(m / factors_[1]);
    Values factors(factors_.size(), m / std::max(counted, 1.0));
    factors[0] = 1;
    if (!gives(factors)) return {};
    return FactorSlip{Slip::wrong_count,
                      concat("the sums are divided by ", static_cast<int64_t>(counted),
                             count_name(counted), " instead of m = ", p_.layout.m)};
  }

  // One term off by a factor, all others right.
  std::optional<FactorSlip> one_term() const {
    for (size_t t = 0; t < terms_.size(); ++t) {
      Values factors(factors_.size(), 1.0);
      factors[t] = factors_[t];
      if (!gives(factors)) continue;
      const double m = static_cast<double>(p_.layout.m), counted = std::round(m / factors_[t]);
      factors[t] = m / counted;
      if (t > 0 && p_.setting.layer != Layer::local_response_norm && counted >= 1 &&
          gives(factors)) {
        return FactorSlip{Slip::wrong_count,
                          concat("the sum of the ", terms_[t].name, " term is divided by ",
                                 static_cast<int64_t>(counted), count_name(counted),
                                 " instead of m = ", p_.layout.m)};
      }
      return FactorSlip{Slip::wrong_scale,
                        concat("the ", terms_[t].name, " term is ", rounded_factor(factors_[t]),
                               " times what it should be", hint(factors_[t]))};
    }
    return {};
  }

  std::string count_name(double counted) const {
    const Layout& l = p_.layout;
    const int64_t n = p_.shape[0], c = p_.shape[1], s = p_.shape.numel() / (n * c);
    const auto is = [&](int64_t value) { return static_cast<double>(value) == counted; };
    if (is(l.m - 1)) return ", which is m - 1,";
    if (is(l.samples)) return p_.setting.is_row_norm() ? ", the number of rows," : ", which is n,";
    if (!p_.setting.is_row_norm() && is(s)) return ", the positions of one channel,";
    if (is(p_.shape.numel())) return ", all elements,";
    if (is(l.params)) return p_.setting.is_row_norm() ? "" : ", which is c,";
    return "";
  }

  std::string as_number(double factor) const {
    const double m = static_cast<double>(p_.layout.m), n = static_cast<double>(p_.layout.samples);
    const auto is = [&](double value) { return std::abs(factor / value - 1) < 1e-5; };
    return is(m)       ? ", which is m"
           : is(1 / m) ? ", which is 1/m"
           : is(1 / n) ? ", which is 1/n"
                       : "";
  }

  std::string hint(double factor) const {
    if (p_.setting.layer != Layer::local_response_norm) return "";
    const auto is = [&](double value) { return std::abs(factor / value - 1) < 1e-5; };
    if (is(0.5)) return ": the derivative of a square has a 2";
    if (is(static_cast<double>(p_.setting.size))) return ": alpha is divided by size there, too";
    return "";
  }

  const Problem& p_;
  const std::vector<Term>& terms_;
  const Values& factors_;
  const Values& claimed_;
  double allowed_;
};

}  // namespace

std::string rounded_factor(double factor) { return fmt::format("{:.4g}", factor); }

FactorSlip read_factors(const Problem& p, const std::vector<Term>& terms, const Values& factors,
                        const Values& claimed, double allowed) {
  return FactorReader(p, terms, factors, claimed, allowed).read();
}

}  // namespace gradus::explain
