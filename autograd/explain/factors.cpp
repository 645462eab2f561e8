#include "autograd/explain/factors.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "autograd/explain/fit.h"
#include "core/error.h"

namespace gradus::explain {
namespace {

// Others are no mistake in a factor.
bool is_plausible(double factor) { return std::abs(factor) > 1e-6 && std::abs(factor) < 1e6; }

// As good as -1 in coarse arithmetic.
bool is_turned(double factor) { return std::abs(factor + 1) < 0.05; }

class FactorReader {
 public:
  FactorReader(const Problem& p, const Candidate& candidate, const Values& factors,
               const Claimed& claimed)
      : p_(p),
        terms_(candidate.terms),
        m_(candidate.m > 0 ? candidate.m : p.layout.m),
        factors_(factors),
        claimed_(claimed) {}

  FactorSlip read() const {
    for (const auto& reading : {&FactorReader::signs, &FactorReader::missing, &FactorReader::count,
                                &FactorReader::one_term}) {
      if (const std::optional<FactorSlip> slip = (this->*reading)()) return *slip;
    }
    if (std::ranges::all_of(factors_, is_one) || !gives(factors_)) return {};
    std::string text = "it is not the sum of its terms, but";
    for (size_t t = 0; t < terms_.size(); ++t)
      text += concat(t == 0 ? " " : " + ", rounded_factor(factors_[t]), "·", terms_[t].name);
    return {Slip::wrong_coefficients, text, spare(units(factors_), terms_.size()), true};
  }

 private:
  // Whether these factors give the claimed gradient.
  bool gives(const Values& factors) const { return claimed_.agrees(combined(terms_, factors)); }

  FactorSlip named(Slip slip, std::string text, const Values& factors) const {
    return {slip, std::move(text), spare(units(factors))};
  }

  Values units(const Values& factors) const { return claimed_.bits(combined(terms_, factors)); }

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
    const std::string names = names_of(factors, -1);
    if (names.empty() || std::ranges::count(factors, 1.0) == 0) return {};  // of it all: a scale
    return named(Slip::wrong_sign, "the sign of " + names + " is turned", factors);
  }

  std::optional<FactorSlip> missing() const {
    const Values factors = rounded();
    if (!std::ranges::all_of(factors, [](double f) { return f == 0 || std::abs(f) == 1; }))
      return {};
    const auto zeros = std::ranges::count(factors, 0.0);
    if (zeros == 0 || zeros == std::ssize(factors) || !gives(factors)) return {};
    std::string text = names_of(factors, 0) + " missing";
    const std::string turned = names_of(factors, -1);
    if (!turned.empty()) text += ", and the sign of " + turned + " turned";
    const std::string names = names_of(factors, 0);
    const Slip slip = names == "direct"       ? Slip::direct_missing
                      : names == "mean"       ? Slip::mean_missing
                      : names == "projection" ? Slip::projection_missing
                                              : Slip::wrong_coefficients;
    return named(slip, text, factors);
  }

  // The best factor of the terms that are `chosen`, where all others are right; 1 where none is.
  double refitted(const std::vector<bool>& chosen) const {
    Values column(claimed_.values().size()), rest = claimed_.values();
    for (size_t t = 0; t < terms_.size(); ++t) {
      for (size_t i = 0; i < rest.size(); ++i) {
        if (chosen[t])
          column[i] += terms_[t].values[i].value;
        else
          rest[i] -= terms_[t].values[i].value;
      }
    }
    const Fit found = fit_terms({&column}, rest, claimed_.weights());
    return found.factors.empty() || !is_plausible(found.factors[0]) ? 1 : found.factors[0];
  }

  // All sums divided by another number than m.
  std::optional<FactorSlip> count() const {
    if (terms_.size() < 2 || !p_.setting.is_norm()) return {};
    std::vector<bool> sums(terms_.size(), true);
    sums[0] = false;
    return divided("the sums are", sums, refitted(sums));
  }

  // One term off by a factor, all others right.
  std::optional<FactorSlip> one_term() const {
    for (size_t t = 0; t < terms_.size(); ++t) {
      std::vector<bool> one(terms_.size(), false);
      one[t] = true;
      const double factor = refitted(one);
      if (t > 0 && p_.setting.layer != Layer::local_response_norm) {
        const std::string text = concat("the sum of the ", terms_[t].name, " term is");
        if (const std::optional<FactorSlip> slip = divided(text, one, factor)) return slip;
      }
      Values factors(factors_.size(), 1.0);
      factors[t] = factor;
      if (is_one(factor) || !gives(factors)) continue;
      if (is_turned(factor)) {
        return FactorSlip{Slip::wrong_sign,
                          concat("the sign of ", terms_[t].name, " is turned, and it is ",
                                 rounded_factor(-factor), " times what it should be"),
                          spare(units(factors), 1), true};
      }
      const std::string known = hint(factor);
      return FactorSlip{Slip::wrong_scale,
                        concat("the ", terms_[t].name, " term is ", rounded_factor(factor),
                               " times what it should be", known),
                        spare(units(factors), known.empty() ? 1 : 0), known.empty()};
    }
    return {};
  }

  // The chosen terms off by a factor m / integer.
  std::optional<FactorSlip> divided(const std::string& text, const std::vector<bool>& chosen,
                                    double factor) const {
    const double m = static_cast<double>(m_), counted = std::round(m / factor);
    if (!(factor > 0) || counted < 1 || counted == m) return {};
    Values factors(factors_.size(), 1.0);
    for (size_t t = 0; t < factors.size(); ++t)
      if (chosen[t]) factors[t] = m / counted;
    if (!gives(factors)) return {};
    return counted_slip(text, counted, factors);
  }

  // Of so many integers any could have been the count, but of those that have a name.
  FactorSlip counted_slip(const std::string& text, double counted, const Values& factors) const {
    const bool squares = std::all_of(factors.begin(), factors.end() - 1, is_one);
    const std::string name = count_name(counted, squares);
    const std::string right =
        m_ == p_.layout.m ? concat("m = ", m_) : concat("the ", m_, " that are added");
    const bool undivided = counted == 1;
    const double price = name.empty() && !undivided ? 1 + std::log2(counted) : 0;
    return {Slip::wrong_count,
            undivided ? concat(text, " not divided by ", right)
                      : concat(text, " divided by ", static_cast<int64_t>(counted), name,
                               " instead of ", right),
            spare(units(factors)) - price, price > 0};
  }

  // squares: of the sum that comes from the variance.
  std::string count_name(double counted, bool squares) const {
    const Layout& l = p_.layout;
    const int64_t n = p_.shape[0], c = p_.shape[1], s = p_.shape.numel() / (n * c);
    const bool rows = p_.setting.is_row_norm();
    std::string names;
    const auto add = [&](bool has, int64_t value, std::string_view name) {
      if (has && static_cast<double>(value) == counted)
        names += concat(names.empty() ? ", " : " or ", name);
    };
    add(m_ == l.m, l.m - 1, "which is m - 1");
    add(m_ != l.m, l.m, "the elements of a whole set");
    add(true, l.samples, rows ? "the number of rows" : "the number of samples");
    add(!rows, s, "the positions of one channel");
    add(!rows, n * s, "the elements of one channel");
    add(p_.setting.layer == Layer::group_norm, c / p_.setting.groups, "the channels of a group");
    add(!rows, c, "the number of channels");
    add(true, p_.shape.numel(), "all elements");
    add(squares && m_ == l.m, 2 * l.m,
        "which is 2·m, as if the 2 of a square's derivative were missing");
    return names.empty() ? "" : names + ",";
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
  int64_t m_;  // elements that the sums add up
  const Values& factors_;
  const Claimed& claimed_;
};

// A factor that is more than a number.
struct KnownFactor {
  double value;
  const char* name;
};
std::vector<KnownFactor> known_factors(const Problem& p) {
  const double m = static_cast<double>(p.layout.m), n = static_cast<double>(p.layout.samples);
  return {{m, "m"}, {1 / m, "1/m"}, {1 / n, "1/n"}};
}

}  // namespace

std::string rounded_factor(double factor) {
  const bool near_one = std::abs(std::abs(factor) - 1) < 0.01;
  return near_one ? fmt::format("{:.6g}", factor) : fmt::format("{:.4g}", factor);
}

Numbers combined(const std::vector<Term>& terms, const Values& factors) {
  return each(terms.front().values.size(), [&](size_t i) {
    Number sum;
    for (size_t t = 0; t < terms.size(); ++t) sum += factors[t] * terms[t].values[i];
    return sum;
  });
}

FactorSlip read_factors(const Problem& p, const Candidate& candidate, const Values& factors,
                        const Claimed& claimed) {
  return FactorReader(p, candidate, factors, claimed).read();
}

FactorSlip read_scale(const Problem& p, const Numbers& right, const Claimed& claimed) {
  const auto scaled = [&](double factor) {
    return each(right.size(), [&](size_t i) { return factor * right[i]; });
  };
  const Numbers none = scaled(0), turned = scaled(-1);
  const bool zero = std::ranges::all_of(claimed.values(), [](double value) { return value == 0; });
  if (zero && claimed.agrees(none))
    return {Slip::wrong_scale, "it is 0 everywhere", spare(claimed.bits(none))};
  if (claimed.agrees(turned))
    return {Slip::wrong_sign, "the sign of it all is turned", spare(claimed.bits(turned))};
  const Values column = values_of(right);
  const Fit found = fit_terms({&column}, claimed.values(), claimed.weights());
  if (found.factors.empty() || !is_plausible(found.factors[0])) return {};
  const double factor = found.factors[0];
  const Numbers multiple = scaled(factor);
  const auto named = [&](double value, std::string_view name, const Numbers& gradient,
                         size_t unknowns) {
    return FactorSlip{Slip::wrong_scale,
                      concat("it is multiplied by ", rounded_factor(value), name),
                      spare(claimed.bits(gradient), unknowns), unknowns > 0};
  };
  for (const KnownFactor& known : known_factors(p)) {
    if (is_one(known.value) || !(std::abs(factor / known.value - 1) < 0.1)) continue;
    if (const Numbers gradient = scaled(known.value); claimed.agrees(gradient))
      return named(known.value, concat(", which is ", known.name), gradient, 0);
  }
  const double plain = factor > 1 ? std::round(factor) : 1 / std::round(1 / factor);
  if (std::abs(factor / plain - 1) < 0.1 && plain != 1)
    if (const Numbers gradient = scaled(plain); claimed.agrees(gradient))
      return named(plain, "", gradient, 1);
  if (is_one(factor) || !claimed.agrees(multiple)) return {};
  if (is_turned(factor)) {
    return {
        Slip::wrong_sign,
        concat("the sign of it all is turned, and it is multiplied by ", rounded_factor(-factor)),
        spare(claimed.bits(multiple), 1), true};
  }
  for (const KnownFactor& known : known_factors(p))
    if (!is_one(known.value) && std::abs(factor / known.value - 1) < 0.02)
      return named(factor, concat(", which is about ", known.name), multiple, 1);
  return named(factor, "", multiple, 1);
}

}  // namespace gradus::explain
