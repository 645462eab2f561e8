// A small image set that can be learnt, and a net for it: for tests of the training loop.
#pragma once

#include <algorithm>

#include "core/random.h"
#include "nn/activation.h"
#include "nn/batch_norm.h"
#include "nn/conv2d.h"
#include "nn/data/image_set.h"
#include "nn/dropout.h"
#include "nn/flatten.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/max_pool2d.h"
#include "nn/sequential.h"

namespace gradus::test {

// 8x8 images of 4 classes: noise, and a bright quarter that tells the class.
inline nn::ImageSet toy_set(int64_t n, uint64_t seed = 1) {
  nn::ImageSet set;
  set.n = n, set.c = 1, set.h = 8, set.w = 8, set.classes = 4;
  set.mean = {0.5f}, set.std = {0.25f};
  PhiloxSequence random(seed, random_stream::kTensor);
  for (int64_t i = 0; i < n; ++i) {
    const int label = static_cast<int>(random.below(4));
    set.labels.push_back(static_cast<uint8_t>(label));
    for (int p = 0; p < 64; ++p) {
      const bool bright = p / 32 == label / 2 && p % 8 / 4 == label % 2;
      set.images.push_back(static_cast<uint8_t>(random.below(160) + (bright ? 95 : 0)));
    }
  }
  return set;
}

// One layer of every kind. Seeds the thread's generators, which dropout draws from.
inline nn::Sequential toy_net(uint64_t seed = 1) {
  manual_seed(seed);
  return nn::Sequential(nn::Conv2d(1, 4, 3, {.padding = {1, 1}}, false), nn::BatchNorm2d(4),
                        nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(), nn::Dropout(0.25),
                        nn::Linear(64, 4));
}

}  // namespace gradus::test
