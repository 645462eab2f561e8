// Each layer of a network of one's own, on the CPU and on CUDA, against f64.
//
//   compare_my_model [FILE.json]
#include <cstdio>
#include <fstream>

#include "nn/activation.h"
#include "nn/compare/compare.h"
#include "nn/conv2d.h"
#include "nn/flatten.h"
#include "nn/group_norm.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/sequential.h"

using namespace gradus;

int main(int argc, char** argv) try {
  manual_seed(1);
  nn::Sequential net(nn::Conv2d(3, 16, 3, {.padding = 1}), nn::GroupNorm(4, 16), nn::ReLU(),
                     nn::Flatten(), nn::Linear(16 * 8 * 8, 10));

  // A batch as the network would see it in training.
  const nn::Batch batch{randn({8, 3, 8, 8}), randint(0, 10, {8})};

  const CompareReport report = compare(net, batch, {.dtypes = {DType::f32, DType::bf16}});

  for (const std::string& sentence : report.missing) std::printf("%s\n", sentence.c_str());
  for (const CompareRow& row : report.rows) {
    for (const CompareValue& value : row.values) {
      for (const CompareError& error : value.errors) {
        std::printf("%-4s %-13s %-4s %-8s on %-6s at most %5.1f ulp, %3.0f %% of what is allowed\n",
                    row.path.c_str(), row.layer.c_str(), to_string(row.dtype).data(),
                    value.name.c_str(), to_string(error.device).c_str(), error.max_ulp,
                    100 * error.of_allowed);
      }
    }
  }
  if (argc > 1 && !(std::ofstream(argv[1]) << to_json(report) << std::flush)) {
    std::fprintf(stderr, "cannot write '%s'\n", argv[1]);
    return 2;
  }
  std::printf(report.ok() ? "all within tolerance\n" : "NOT within tolerance\n");
  return report.ok() ? 0 : 1;
} catch (const gradus::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
