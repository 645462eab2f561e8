// d/dx of Σ x² is 2x; and an error arrives as one.
#include <cstdio>

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/sum.h"
#include "core/error.h"
#include "core/tensor.h"

int main() {
  using gradus::Tensor;
  Tensor x = Tensor::from_vector<float>({1, 2, 3, 4}, {2, 2});
  x.set_requires_grad(true);
  gradus::sum(x * x).backward();
  const std::vector<float> dx = x.grad().to_vector<float>();
  if (dx != std::vector<float>{2, 4, 6, 8}) {
    std::puts("wrong gradient");
    return 1;
  }
  try {
    x.reshape({3, 3});
  } catch (const gradus::Error& error) {
    std::printf("the consumer works; an error reads \"%s\"\n", error.what());
    return 0;
  }
  std::puts("no error for a reshape that cannot be");
  return 1;
}
