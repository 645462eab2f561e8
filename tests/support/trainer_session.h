// A net, its optimizer and its data, small enough to train within a test.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "nn/optim/sgd.h"
#include "nn/trainer.h"
#include "tests/support/each_device.h"
#include "tests/support/toy.h"

namespace gradus::test {

// The options may be changed before start().
struct Session {
  explicit Session(Device device, uint64_t seed = 1, int64_t images = 64) : net(toy_net(seed)) {
    net.to(device);
    loader = std::make_unique<nn::DataLoader>(
        toy_set(images),
        nn::LoaderOptions{.batch_size = 8, .seed = seed, .crop_padding = 1, .device = device});
    optimizer = std::make_unique<nn::SGD>(
        net.named_parameters(),
        nn::SGDOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-4, .nesterov = true});
  }

  nn::Trainer& start() {
    trainer = std::make_unique<nn::Trainer>(net, *loader, *optimizer, options);
    return *trainer;
  }
  std::string hash() { return nn::parameter_hash(net); }

  nn::Sequential net;
  std::unique_ptr<nn::DataLoader> loader;
  std::unique_ptr<nn::Optimizer> optimizer;
  nn::TrainerOptions options{.epochs = 2, .progress_every = 3};
  std::unique_ptr<nn::Trainer> trainer;
};

}  // namespace gradus::test
