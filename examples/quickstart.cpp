// A complete training program: a small CNN on Fashion-MNIST, about 90 % after two epochs.
//
//   quickstart [DATA_DIR [cpu|cuda [EPOCHS]]]
#include <cstdio>
#include <cstdlib>

#include "nn/activation.h"
#include "nn/batch_norm.h"
#include "nn/checkpoint.h"
#include "nn/conv2d.h"
#include "nn/flatten.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/max_pool2d.h"
#include "nn/optim/sgd.h"
#include "nn/sequential.h"

using namespace gradus;

int main(int argc, char** argv) try {
  const std::string dir = argc > 1 ? argv[1] : nn::default_data_dir("fashion-mnist");
  const Device device = parse_device(argc > 2 ? argv[2] : "cpu");
  const int64_t epochs = argc > 3 ? std::atoi(argv[3]) : 2;

  manual_seed(1);
  nn::Sequential net(nn::Conv2d(1, 16, 3, {.padding = 1}, false), nn::BatchNorm2d(16), nn::ReLU(),
                     nn::MaxPool2d(2), nn::Conv2d(16, 32, 3, {.padding = 1}, false),
                     nn::BatchNorm2d(32), nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(),
                     nn::Linear(32 * 7 * 7, 10));
  net.to(device);

  nn::DataLoader train(nn::load_fashion_mnist(dir, true), {.batch_size = 128, .device = device});
  nn::DataLoader test(nn::load_fashion_mnist(dir, false),
                      {.batch_size = 500, .shuffle = false, .drop_last = false, .device = device});
  nn::SGD optimizer(net.named_parameters(),
                    {.momentum = 0.9, .weight_decay = 5e-4, .nesterov = true});
  const int64_t steps = epochs * train.batches();
  optimizer.set_schedule(nn::schedules::one_cycle(0.1, steps), steps);

  nn::Trainer trainer(net, train, optimizer,
                      {.epochs = epochs, .on_epoch = [](const auto& report) {
                         std::printf("epoch %d: loss %.4f, test accuracy %.2f %%, %.0f images/s\n",
                                     static_cast<int>(report.epoch + 1), report.train.loss,
                                     100 * report.test->accuracy, report.images_per_second);
                       }});
  trainer.run(&test);
  nn::save_weights("quickstart.safetensors", net);
} catch (const gradus::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
