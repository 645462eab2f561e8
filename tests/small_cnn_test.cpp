// The net of the README on real images, CPU against CUDA.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "nn/data/image_set.h"
#include "nn/init.h"
#include "nn/models.h"
#include "nn/optim/sgd.h"
#include "nn/trainer.h"
#include "tests/support/gpu.h"

namespace gradus::nn {
namespace {

// Fashion-MNIST where its package is installed, or in the folder that GRADUS_FASHION_MNIST names.
std::string data_dir() {
  const char* named = std::getenv("GRADUS_FASHION_MNIST");
  return named ? named : default_data_dir("fashion-mnist");
}

std::vector<double> first_losses(Device device, int steps) {
  manual_seed(1);
  Sequential net = make_model("small_cnn");
  net.to(device);
  DataLoader loader(load_fashion_mnist(data_dir(), true),
                    {.batch_size = 128, .seed = 1, .device = device});
  Sgd optimizer(net.named_parameters(),
                {.lr = 0.1, .momentum = 0.9, .weight_decay = 5e-4, .nesterov = true});
  optimizer.set_schedule(schedules::one_cycle(0.1, 8 * 468), 8 * 468);
  Trainer trainer(net, loader, optimizer, {.epochs = 8});
  std::vector<double> losses;
  double before = 0;
  for (int i = 1; i <= steps; ++i) {
    trainer.step();
    const double sum = trainer.train_metrics().loss * i;
    losses.push_back(sum - before);
    before = sum;
  }
  return losses;
}

TEST(SmallCnnCudaSlow, StrictLossesOfTheFirstStepsAreThoseOfTheCpu) {
  GRADUS_SKIP_WITHOUT(kCuda);
  if (!std::filesystem::exists(data_dir()))
    GTEST_SKIP() << "no Fashion-MNIST in '" << data_dir() << "'";
  const std::vector<double> cpu = first_losses(kCpu, 20), cuda = first_losses(kCuda, 20);
  double worst = 0;
  for (size_t i = 0; i < cpu.size(); ++i) {
    worst = std::max(worst, std::abs(cuda[i] - cpu[i]) / cpu[i]);
    EXPECT_NEAR(cuda[i], cpu[i], 1e-4 * cpu[i]) << "step " << i;
  }
  RecordProperty("largest_relative_difference", std::to_string(worst));
  printf("largest relative difference of the first 20 losses: %.2e\n", worst);
}

}  // namespace
}  // namespace gradus::nn
