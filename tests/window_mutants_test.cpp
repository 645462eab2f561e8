// Variants of conv2d and max_pool2d that are wrong in one way: the comparison that the kernels pass
// must refuse each of them in several of the ops' own cases.

#include <algorithm>

#include "tests/support/compare.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

using Arrays = std::vector<ref::Array>;

// What a faulty kernel would give: y and the gradients of x, w and (where given) bias.
struct Results {
  ref::Array y;
  Arrays grads;
};
using Mutant = std::function<Results(const OpCase&, const Arrays& in, const ref::Array& dy)>;

Results right(const OpCase& op_case, const Arrays& in, const ref::Array& dy) {
  return {op_case.reference(in), op_case.reference_backward(in, dy)};
}

bool accepts(const OpCase& op_case, const Results& got, const Results& want, DType dtype) {
  const auto agree = [&](const ref::Array& a, const ref::Array& b, DType type) {
    return static_cast<bool>(compare(a.data, b.data, type, op_case.reduction, op_case.scale));
  };
  bool all = agree(got.y, want.y, dtype);
  for (size_t i = 0; i < want.grads.size(); ++i) {
    const bool is_value = op_case.inputs[i].kind == CaseInput::Kind::value;
    all = all && agree(got.grads[i], want.grads[i], is_value ? dtype : acc_dtype(dtype));
  }
  return all;
}

void expect_rejected(const char* op, const std::vector<std::pair<const char*, Mutant>>& mutants) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    std::vector<int> rejections(mutants.size(), 0);
    for (const OpCase& op_case : test_cases_of(op)) {
      const Arrays in = draw_inputs(op_case, dtype, 7);
      const ref::Array dy = draw_upstream(op_case.reference(in).shape, dtype, 8);
      const Results want = right(op_case, in, dy);
      EXPECT_TRUE(accepts(op_case, right(op_case, in, dy), want, dtype));
      for (size_t m = 0; m < mutants.size(); ++m)
        rejections[m] += !accepts(op_case, mutants[m].second(op_case, in, dy), want, dtype);
    }
    for (size_t m = 0; m < mutants.size(); ++m)
      EXPECT_GE(rejections[m], 5) << mutants[m].first << " in " << to_string(dtype);
  }
}

// Reverses every run of `length` values.
void reverse_runs(ref::Array& a, int64_t length) {
  for (int64_t i = 0; i < a.numel(); i += length)
    std::reverse(a.data.begin() + i, a.data.begin() + i + length);
}
// Moves the first of `rows` rows to the end: what an offset that is one too large reads.
void rotate_rows(ref::Array& a, int64_t rows) {
  std::rotate(a.data.begin(), a.data.begin() + a.numel() / rows, a.data.end());
}
// Exchanges values 2i and 2i + 1 of every run of `length` values, as far as both are there.
void exchange_pairs(ref::Array& a, int64_t length) {
  for (int64_t i = 0; i < a.numel(); i += length) {
    for (int64_t j = 0; j + 1 < length; j += 2) std::swap(a[i + j], a[i + j + 1]);
  }
}
// Sets the last of every `period` values to 0.
void drop_last(ref::Array& a, int64_t period) {
  for (int64_t i = period - 1; i < a.numel(); i += period) a[i] = 0;
}

TEST(WindowMutants, OfConv2dAreRejected) {
  const auto taps = [](const ref::Array& w) { return w.shape[2] * w.shape[3]; };
  expect_rejected("conv2d",
                  {{"flipped kernel",
                    [&](const OpCase& c, Arrays in, const ref::Array& dy) {
                      reverse_runs(in[1], taps(in[1]));
                      return right(c, in, dy);
                    }},
                   {"kernel not flipped for dx",
                    [&](const OpCase& c, const Arrays& in, const ref::Array& dy) {
                      Results result = right(c, in, dy);
                      Arrays flipped = in;
                      reverse_runs(flipped[1], taps(in[1]));
                      result.grads[0] = right(c, flipped, dy).grads[0];
                      return result;
                    }},
                   {"last column of the kernel lost",
                    [](const OpCase& c, Arrays in, const ref::Array& dy) {
                      drop_last(in[1], in[1].shape[3]);
                      return right(c, in, dy);
                    }},
                   {"last column of y lost",
                    [](const OpCase& c, const Arrays& in, const ref::Array& dy) {
                      Results result = right(c, in, dy);
                      drop_last(result.y, result.y.shape[3]);
                      return result;
                    }},
                   {"last column left out of dw",
                    [](const OpCase& c, const Arrays& in, const ref::Array& dy) {
                      Results result = right(c, in, dy);
                      ref::Array short_dy = dy;
                      drop_last(short_dy, dy.shape[3]);
                      result.grads[1] = right(c, in, short_dy).grads[1];
                      return result;
                    }},
                   {"dx moved by a column",
                    [](const OpCase& c, const Arrays& in, const ref::Array& dy) {
                      Results result = right(c, in, dy);
                      rotate_rows(result.grads[0], result.grads[0].numel());
                      return result;
                    }},
                   {"wrong parity: neighbouring columns of dx exchanged",
                    [](const OpCase& c, const Arrays& in, const ref::Array& dy) {
                      Results result = right(c, in, dy);
                      exchange_pairs(result.grads[0], in[0].shape[3]);
                      return result;
                    }},
                   {"a parity lost: every second column of dx",
                    [](const OpCase& c, const Arrays& in, const ref::Array& dy) {
                      Results result = right(c, in, dy);
                      const int64_t columns = in[0].shape[3];
                      for (int64_t i = 0; i < result.grads[0].numel(); ++i) {
                        if (i % columns % 2 == 1) result.grads[0][i] = 0;
                      }
                      return result;
                    }},
                   {"remainder lost: last column of dx",
                    [](const OpCase& c, const Arrays& in, const ref::Array& dy) {
                      Results result = right(c, in, dy);
                      drop_last(result.grads[0], in[0].shape[3]);
                      return result;
                    }},
                   {"groups mixed up: each reads the channels of the next one",
                    [](const OpCase& c, Arrays in, const ref::Array& dy) {
                      const int64_t planes = in[0].shape[2] * in[0].shape[3];
                      const int64_t image = in[0].shape[1] * planes;
                      for (int64_t n = 0; n < in[0].numel(); n += image) {
                        const auto begin = in[0].data.begin() + n;
                        std::rotate(begin, begin + in[1].shape[1] * planes, begin + image);
                      }
                      return right(c, in, dy);
                    }},
                   {"weights of the next output",
                    [](const OpCase& c, Arrays in, const ref::Array& dy) {
                      rotate_rows(in[1], in[1].shape[0]);
                      return right(c, in, dy);
                    }},
                   {"channels of the next one (group offset)",
                    [](const OpCase& c, Arrays in, const ref::Array& dy) {
                      rotate_rows(in[0], in[0].shape[0] * in[0].shape[1]);
                      return right(c, in, dy);
                    }},
                   {"last image left out of dbias",
                    [](const OpCase& c, const Arrays& in, const ref::Array& dy) {
                      Results result = right(c, in, dy);
                      if (in.size() < 3) return result;
                      ref::Array short_dy = dy;
                      std::fill(short_dy.data.end() - dy.numel() / dy.shape[0], short_dy.data.end(),
                                0.0);
                      result.grads[2] = right(c, in, short_dy).grads[2];
                      return result;
                    }},
                   {"no bias", [](const OpCase& c, const Arrays& in, const ref::Array& dy) {
                      Results result = right(c, in, dy);
                      Arrays without = in;
                      if (in.size() > 2)
                        std::fill(without[2].data.begin(), without[2].data.end(), 0.0);
                      result.y = c.reference(without);
                      return result;
                    }}});
}

TEST(WindowMutants, OfMaxPool2dAreRejected) {
  expect_rejected("max_pool2d", {{"smallest instead of largest",
                                  [](const OpCase& c, Arrays in, const ref::Array& dy) {
                                    for (double& value : in[0].data) value = -value;
                                    Results result = right(c, in, dy);
                                    for (double& value : result.y.data) value = -value;
                                    return result;
                                  }},
                                 {"padding and overhang of zeros win",
                                  [](const OpCase& c, const Arrays& in, const ref::Array& dy) {
                                    Results result = right(c, in, dy);
                                    result.y[result.y.numel() - 1] =
                                        std::max(result.y[result.y.numel() - 1], 0.0);
                                    return result;
                                  }},
                                 {"gradient of the neighbour",
                                  [](const OpCase& c, const Arrays& in, const ref::Array& dy) {
                                    Results result = right(c, in, dy);
                                    rotate_rows(result.grads[0], result.grads[0].numel());
                                    return result;
                                  }},
                                 {"last window of each row without gradient",
                                  [](const OpCase& c, const Arrays& in, const ref::Array& dy) {
                                    Results result = right(c, in, dy);
                                    ref::Array short_dy = dy;
                                    drop_last(short_dy, dy.shape[3]);
                                    result.grads[0] = right(c, in, short_dy).grads[0];
                                    return result;
                                  }},
                                 {"overlapping windows overwrite each other",
                                  [](const OpCase& c, const Arrays& in, const ref::Array& dy) {
                                    // An element that several windows took keeps the last of their
                                    // gradients.
                                    ref::Array one = ref::full(dy.shape, 1.0);
                                    const ref::Array takers = right(c, in, one).grads[0];
                                    Results result = right(c, in, dy);
                                    for (int64_t i = 0; i < takers.numel(); ++i)
                                      if (takers[i] > 1) result.grads[0][i] /= takers[i];
                                    return result;
                                  }}});
}

}  // namespace
}  // namespace gradus
