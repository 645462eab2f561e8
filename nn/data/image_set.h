// Labelled image sets, as their files give them: pixels stay u8 until a batch is made.
//
//   ImageSet train = load_image_set("fashion-mnist", default_data_dir("fashion-mnist"), true);
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gradus::nn {

struct ImageSet {
  std::vector<uint8_t> images;  // [n, c, h, w]
  std::vector<uint8_t> labels;  // [n], each below `classes`
  int64_t n = 0, c = 0, h = 0, w = 0;
  int classes = 0;
  std::vector<std::string> class_names;  // [classes]
  // Per channel, of the training pixels scaled to 0..1: batches hold (x / 255 - mean) / std.
  std::vector<float> mean, std;  // [c]
  std::string name;              // "fashion-mnist"; may be empty
};

// Each reads the training or the test part of a set from `dir`, under the names that its authors
// gave the files, plain or with .gz. Throws io for a missing directory or file (naming it, all
// files expected and where to get them), a damaged file, images and labels that differ in number,
// and a label that is no class.
ImageSet load_mnist(const std::string& dir, bool train);
ImageSet load_fashion_mnist(const std::string& dir, bool train);
ImageSet load_cifar10(const std::string& dir,
                      bool train);  // the "binary version", data_batch_1.bin

// By name: "mnist", "fashion-mnist" or "cifar10"; throws invalid_argument on any other.
ImageSet load_image_set(std::string_view name, const std::string& dir, bool train);

// The directory where a Debian package puts a set; empty for sets that no package brings.
std::string default_data_dir(std::string_view name);

}  // namespace gradus::nn
