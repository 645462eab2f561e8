// What can be said of a dx that no slip gives. In each set a right one is a·d + b + c·xhat with
// a = rstd, b = -rstd·m1, c = -rstd·m2; which of the three are wrong shows where the right value of
// one is taken away and the rest still is a sum of the other two.
#include <cmath>

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
  Values column, right_part;
};

using Members = std::vector<std::vector<size_t>>;

Members members_of(const Layout& layout) {
  Members members(static_cast<size_t>(layout.sets));
  for (size_t i = 0; i < layout.set.size(); ++i) members[at(layout.set, i)].push_back(i);
  return members;
}

std::vector<Part> parts_of(const Problem& p) {
  const Statistics s = statistics_candidates(p)[0].statistics;
  const Sets sets = sets_of(p.layout.set);
  const Values d = each(p.x.size(), [&](size_t i) { return p.dy[i] * p.gamma[i]; });
  const Values xhat = normalized(p, s), m1 = mean_over(sets, d);
  const Values m2 = mean_over(sets, each(d.size(), [&](size_t i) { return d[i] * xhat[i]; }));
  const bool mean = p.setting.has_mean() && !p.setting.is_evaluation();
  std::vector<Part> parts{
      {"a", "·d", "rstd", d, each(d.size(), [&](size_t i) { return s.rstd[i] * d[i]; })},
      {"b", "", mean ? "-rstd·m1" : "0", Values(d.size(), 1.0),
       each(d.size(), [&](size_t i) { return mean ? -s.rstd[i] * m1[i] : 0.0; })}};
  if (!p.setting.is_evaluation()) {
    parts.push_back({"c", "·xhat", "-rstd·m2", xhat,
                     each(d.size(), [&](size_t i) { return -s.rstd[i] * m2[i] * xhat[i]; })});
  }
  return parts;
}

std::vector<const Values*> columns_of(const std::vector<Part>& parts,
                                      std::string_view without = {}) {
  std::vector<const Values*> columns;
  for (const Part& part : parts)
    if (part.letter != without) columns.push_back(&part.column);
  return columns;
}

// In how many sets the values are a sum of the columns.
int64_t spanned(const Members& members, const std::vector<const Values*>& columns,
                const Values& values, double allowed) {
  int64_t count = 0;
  for (const std::vector<size_t>& set : members)
    count += fit(columns, values, set).residual <= allowed;
  return count;
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

}  // namespace

std::string unknown_text(const Problem& p, const Values& claimed, double allowed) {
  if (!p.setting.is_norm() || p.layout.m <= 3) return "";
  const Members members = members_of(p.layout);
  std::vector<Part> parts = parts_of(p);
  const int64_t fits = spanned(members, columns_of(parts), claimed, allowed);
  if (fits < p.layout.sets) {
    return concat("; in ", p.layout.sets - fits, " of ", p.layout.sets, " sets it is no sum ",
                  sum_text(parts), " with d = dy·gamma, whatever ",
                  parts.size() == 3 ? "a, b and c" : "a and b",
                  ": look for what mixes up elements, such as wrong indices");
  }
  const bool has_b = p.setting.has_mean() && !p.setting.is_evaluation();
  if (!has_b && spanned(members, columns_of(parts, "b"), claimed, allowed) == p.layout.sets)
    parts.erase(parts.begin() + 1);
  std::vector<std::string> right;
  for (const Part& part : parts) right.push_back(concat(part.letter, " = ", part.right));
  Fit all = fit(columns_of(parts), claimed);
  if (!all.factors.empty() && all.residual <= allowed) {
    for (size_t k = 0; k < parts.size(); ++k)
      if (std::abs(all.factors[k]) * largest(parts[k].column) <= allowed) all.factors[k] = 0;
    return concat("; your dx is ", sum_text(parts, all.factors),
                  p.layout.sets > 1 ? ", with the same numbers in all sets" : "", "; right is ",
                  sum_text(parts), " with ", listed(right), " of each set (d = dy·gamma)");
  }
  std::vector<std::string> wrong, look;
  for (const Part& part : parts) {
    const Values rest =
        each(claimed.size(), [&](size_t i) { return claimed[i] - part.right_part[i]; });
    if (spanned(members, columns_of(parts, part.letter), rest, allowed) == p.layout.sets) continue;
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
