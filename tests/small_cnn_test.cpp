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

std::vector<double> first_losses(Device device, double lr) {
  constexpr int kSteps = 20;
  manual_seed(1);
  Sequential net = make_model("small_cnn");
  net.to(device);
  DataLoader loader(load_fashion_mnist(data_dir(), true),
                    {.batch_size = 128, .seed = 1, .device = device});
  SGD optimizer(net.named_parameters(),
                {.lr = 0.1, .momentum = 0.9, .weight_decay = 5e-4, .nesterov = true});
  optimizer.set_schedule(schedules::one_cycle(lr, 8 * 468), 8 * 468);
  Trainer trainer(net, loader, optimizer, {.epochs = 8});
  std::vector<double> losses;
  double before = 0;
  for (int i = 1; i <= kSteps; ++i) {
    trainer.step();
    const double sum = trainer.train_metrics().loss * i;
    losses.push_back(sum - before);
    before = sum;
  }
  return losses;
}

// Largest relative difference between the losses of CPU and CUDA.
double difference(double lr) {
  const std::vector<double> cpu = first_losses(kCpu, lr), cuda = first_losses(kCuda, lr);
  double worst = 0;
  for (size_t i = 0; i < cpu.size(); ++i) {
    worst = std::max(worst, std::abs(cuda[i] - cpu[i]) / cpu[i]);
  }
  return worst;
}

// Training multiplies every difference, the faster the larger the rate: at the program's default of
// 0.1, keeping all values but the arithmetic in f32 already moves the twentieth loss by 1e-4. The
// bounds leave room for rounding, and none for a wrong gradient.
TEST(SmallCnnCudaSlow, StrictLossesOfTheFirstStepsAreThoseOfTheCpu) {
  GRADUS_SKIP_WITHOUT(kCuda);
  if (!std::filesystem::exists(data_dir())) {
    GTEST_SKIP() << "no Fashion-MNIST in '" << data_dir() << "'";
  }
  EXPECT_LT(difference(0.02), 2e-5);
  EXPECT_LT(difference(0.1), 1e-3);
}

}  // namespace
}  // namespace gradus::nn
