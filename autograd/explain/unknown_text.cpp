// What can be said of a dx that no slip gives. In each set a right one is a·d + b + c·xhat with
// a = rstd, b = -rstd·m1, c = -rstd·m2; which of the three are wrong shows where the right value of
// one is taken away and the rest still is a sum of the other two.
#include <algorithm>
#include <cmath>
#include <optional>

#include "autograd/explain/factors.h"
#include "autograd/explain/fit.h"
#include "autograd/explain/judge.h"
#include "core/error.h"

namespace gradus::explain {
namespace {

struct Part {
  std::string letter;
  std::string times;  // "·d"
  std::string right;  // of the letter: "rstd"
  Numbers column, right_part;
};

std::vector<Part> parts_of(const Problem& p) {
  const Statistics s = statistics_candidates(p)[0].statistics;
  const Sets sets = sets_of(p.layout.set);
  const Numbers d = product(p.dy, p.gamma), xhat = normalized(p, s);
  const Numbers m1 = mean_over(sets, d), m2 = mean_over(sets, product(d, xhat));
  const bool mean = p.setting.has_mean() && !p.setting.is_evaluation();
  std::vector<Part> parts{
      {"a", "·d", "rstd", d, product(s.rstd, d)},
      {"b", "", mean ? "-rstd·m1" : "0", Numbers(d.size(), 1.0),
       each(d.size(), [&](size_t i) { return mean ? -s.rstd[i] * m1[i] : Number(); })}};
  if (!p.setting.is_evaluation()) {
    parts.push_back({"c", "·xhat", "-rstd·m2", xhat,
                     each(d.size(), [&](size_t i) { return -s.rstd[i] * m2[i] * xhat[i]; })});
  }
  return parts;
}

// The parts but `right`, whose right value stands, as columns for a fit of the rest of the claim.
struct Columns {
  Columns(const std::vector<Part>& of, const Claimed& claimed, std::string_view right_part)
      : parts(of), right(right_part), rest(claimed.values()) {
    for (const Part& part : parts) {
      if (part.letter != right) {
        values.push_back(values_of(part.column));
        continue;
      }
      for (size_t i = 0; i < rest.size(); ++i) rest[i] -= part.right_part[i].value;
    }
  }

  const std::vector<Part>& parts;
  std::string_view right;
  Values rest;
  std::vector<Values> values;
};

// The factors with which they fit the claim best in the elements `at` (empty: all); nothing where
// they do not give it. Parts that a set cannot tell apart count as fitting.
std::optional<Values> fitting(const Columns& columns, const Claimed& claimed,
                              const std::vector<size_t>& at = {}) {
  const Values factors =
      fit(pointers_to(columns.values), columns.rest, claimed.weights(), at).factors;
  if (factors.empty()) return at.empty() ? std::nullopt : std::optional(Values());
  const size_t count = at.empty() ? columns.rest.size() : at.size();
  for (size_t k = 0; k < count; ++k) {
    const size_t i = at.empty() ? k : at[k];
    Number sum;
    size_t next = 0;
    for (const Part& part : columns.parts) {
      sum += part.letter == columns.right ? part.right_part[i] : factors[next++] * part.column[i];
    }
    if (!claimed.agrees(sum, i)) return std::nullopt;
  }
  return factors;
}

// In how many sets the claim is a sum of the parts, of which one is right.
int64_t spanned(const Members& members, const std::vector<Part>& parts, const Claimed& claimed,
                std::string_view right = {}) {
  const Columns columns(parts, claimed, right);
  return std::ranges::count_if(members, [&](const std::vector<size_t>& set) {
    return fitting(columns, claimed, set).has_value();
  });
}

// "a, b and c"
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  return text;
}

// "a·d + b + c·xhat", or the factors that are not 0 in place of the letters.
std::string sum_text(const std::vector<Part>& parts, const Values& factors = {}) {
  std::string text;
  for (size_t k = 0; k < parts.size(); ++k) {
    if (!factors.empty() && factors[k] == 0) continue;
    const bool minus = !factors.empty() && factors[k] < 0;
    text += text.empty() ? (minus ? "-" : "") : minus ? " - " : " + ";
    text += factors.empty() ? parts[k].letter : rounded_factor(std::abs(factors[k]));
    text += parts[k].times;
  }
  return text;
}

// Of a dx that is no sum of the parts: whether it is one with gamma elsewhere, or nearly one.
std::string no_sum_text(const Problem& p, const Members& members, const std::vector<Part>& parts,
                        int64_t fits, const Claimed& claimed) {
  std::vector<Part> other = parts;
  other[0].column = p.dy;
  other[0].times = "·dy";
  if (spanned(members, other, claimed) == p.layout.sets) {
    return concat("; your dx is ", sum_text(other),
                  " in each set: gamma is missing, d = dy·gamma takes the place of dy");
  }
  const std::string sum = sum_text(other);
  for (Part& part : other) part.column = product(part.column, p.gamma);
  if (spanned(members, other, claimed) == p.layout.sets) {
    return concat("; your dx is gamma·(", sum,
                  ") in each set: gamma belongs inside, d = dy·gamma takes the place of dy");
  }
  double off = 0, most = 0;
  for (size_t i = 0; i < claimed.values().size(); ++i) {
    if (claimed.weights()[i] == 0) continue;
    off = std::max(off, claimed.distance(i));
    most = std::max(most, std::abs(claimed.values()[i]));
  }
  return concat("; in ", p.layout.sets - fits, " of ", p.layout.sets, " sets it is no sum ",
                sum_text(parts), " with d = dy·gamma, whatever ",
                parts.size() == 3 ? "a, b and c" : "a and b",
                off < 0.01 * most
                    ? ", but nearly the right one: look for rounding to a coarser dtype on the way"
                    : ": look for what mixes up elements, such as wrong indices");
}

// Whether nothing of the part is seen.
bool vanishes(double factor, const Part& part, const Claimed& claimed) {
  for (size_t i = 0; i < part.column.size(); ++i)
    if (std::abs(factor * part.column[i].value) * claimed.weights()[i] > 1) return false;
  return true;
}

}  // namespace

std::string where_text(const Claimed& claimed, std::string_view groups) {
  const Groups& all = claimed.groups();
  std::vector<bool> wrong(static_cast<size_t>(all.count));
  std::optional<size_t> first;
  bool zero = true;
  for (size_t i = 0; i < claimed.values().size(); ++i) {
    if (!(claimed.distance(i) * claimed.weights()[i] > 1)) continue;
    wrong[at(all.of, i)] = true;
    if (!first) first = i;
    zero = zero && claimed.values()[i] == 0;
  }
  const int64_t right = std::ranges::count(wrong, false) - claimed.groups_left_out();
  if (!first || 2 * right < all.count) return "";
  return concat("; it is right in ", right, " of ", all.count, " ", groups,
                ", and wrong first at element ", *first, " (from 0)",
                zero ? "; what is wrong is 0" : "");
}

std::string unknown_text(const Problem& p, const Claimed& claimed) {
  if (!p.setting.is_norm() || p.layout.m <= 3) return "";
  const Members members = members_of(p.layout.set, p.layout.sets);
  std::vector<Part> parts = parts_of(p);
  const int64_t fits = spanned(members, parts, claimed);
  if (fits < p.layout.sets) return no_sum_text(p, members, parts, fits, claimed);
  const bool has_b = p.setting.has_mean() && !p.setting.is_evaluation();
  if (!has_b) {
    std::vector<Part> without = parts;
    without.erase(without.begin() + 1);
    if (spanned(members, without, claimed) == p.layout.sets) parts = without;
  }
  std::vector<std::string> right;
  for (const Part& part : parts) right.push_back(concat(part.letter, " = ", part.right));
  if (std::optional<Values> all = fitting(Columns(parts, claimed, {}), claimed)) {
    for (size_t k = 0; k < parts.size(); ++k)
      if (vanishes((*all)[k], parts[k], claimed)) (*all)[k] = 0;
    return concat("; your dx is ", sum_text(parts, *all),
                  p.layout.sets > 1 ? ", with the same numbers in all sets" : "", "; right is ",
                  sum_text(parts), " with ", listed(right), " of each set (d = dy·gamma)");
  }
  std::vector<std::string> wrong, look;
  for (const Part& part : parts) {
    if (spanned(members, parts, claimed, part.letter) == p.layout.sets) continue;
    wrong.push_back(part.letter);
    if (part.letter == "b") look.emplace_back(has_b ? "m1" : "a mean that is taken away");
    if (part.letter == "c") look.emplace_back("m2");
  }
  look.emplace_back("rstd");
  const std::string which =
      wrong.empty() ? "they are" : listed(wrong) + (wrong.size() == 1 ? " is" : " are");
  return concat("; your dx is ", sum_text(parts), " in each set (d = dy·gamma), but ", which,
                " wrong and not the same in all sets; right: ", listed(right), "; look at ",
                listed(look));
}

}  // namespace gradus::explain
