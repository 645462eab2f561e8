#include "nn/data/image_set.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <utility>

#include "core/error.h"
#include "nn/data/cifar10.h"
#include "nn/data/idx.h"

namespace gradus::nn {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kOp = "load_image_set";

struct SetInfo {
  std::string_view name;
  std::vector<std::string> train_files, test_files;
  std::vector<std::string_view> folders;  // below the directory, where other tools put the files
  std::string_view source;                // where to get the files
  std::string_view package_dir;
  int64_t c;
  std::vector<std::string> class_names;
  std::vector<float> mean, std;
  ImageSet (*load)(const std::string& dir, bool train);
};

const SetInfo& set_info(std::string_view name) {
  static const std::vector<std::string> idx_train{"train-images-idx3-ubyte",
                                                  "train-labels-idx1-ubyte"};
  static const std::vector<std::string> idx_test{"t10k-images-idx3-ubyte",
                                                 "t10k-labels-idx1-ubyte"};
  static const SetInfo sets[] = {
      {.name = "mnist",
       .train_files = idx_train,
       .test_files = idx_test,
       .folders = {".", "raw", "MNIST/raw"},
       .source = "the four files are published with the MNIST database",
       .package_dir = "",
       .c = 1,
       .class_names = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
       .mean = {0.1307f},
       .std = {0.3081f},
       .load = load_mnist},
      {.name = "fashion-mnist",
       .train_files = idx_train,
       .test_files = idx_test,
       .folders = {".", "raw", "FashionMNIST/raw"},
       .source = "the Debian package dataset-fashion-mnist installs them in "
                 "/usr/share/datasets/fashion-mnist",
       .package_dir = "/usr/share/datasets/fashion-mnist",
       .c = 1,
       .class_names = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt",
                       "Sneaker", "Bag", "Ankle boot"},
       .mean = {0.2860f},
       .std = {0.3530f},
       .load = load_fashion_mnist},
      {.name = "cifar10",
       .train_files = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                       "data_batch_4.bin", "data_batch_5.bin"},
       .test_files = {"test_batch.bin"},
       .folders = {".", "cifar-10-batches-bin"},
       .source = "they are in cifar-10-binary.tar.gz, the binary version of CIFAR-10",
       .package_dir = "",
       .c = 3,
       .class_names = {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse",
                       "ship", "truck"},
       .mean = {0.4914f, 0.4822f, 0.4465f},
       .std = {0.2470f, 0.2435f, 0.2616f},
       .load = load_cifar10},
  };
  const auto found = std::ranges::find(sets, name, &SetInfo::name);
  check(found != std::end(sets), kOp, "unknown data set '", name,
        "', expected mnist, fashion-mnist or cifar10");
  return *found;
}

std::string join(std::span<const std::string> names) {
  std::string text;
  for (const std::string& name : names) text += concat(text.empty() ? "" : ", ", name);
  return text;
}

// The file's path under one of its usual spellings, or "" if there is none.
std::string find_file(const SetInfo& info, const fs::path& dir, const std::string& name) {
  std::string dotted = name;  // some unpackers write train-images.idx3-ubyte
  if (const auto at = dotted.find("-idx"); at != std::string::npos) dotted[at] = '.';
  for (const std::string_view folder : info.folders) {
    const fs::path base = folder == "." ? dir : dir / folder;
    for (const std::string& candidate : {name, name + ".gz", dotted, dotted + ".gz"}) {
      std::error_code ignored;
      const fs::file_status status = fs::status(base / candidate, ignored);
      if (fs::exists(status) && !fs::is_directory(status)) return (base / candidate).string();
    }
  }
  return "";
}

// Paths of all files of one part, or one error that says what to do about those missing.
std::vector<std::string> find_files(const SetInfo& info, const std::string& dir, bool train) {
  const auto advice = [&] {
    return concat("expected ", join(info.train_files), ", ", join(info.test_files),
                  ", plain or .gz; ", info.source);
  };
  std::error_code ignored;
  if (!fs::is_directory(dir, ignored)) {
    fail(ErrorCode::io, kOp, info.name, ": directory '", dir,
         fs::exists(dir, ignored) ? "' is a file: " : "' does not exist: ", advice());
  }
  std::vector<std::string> paths, missing;
  for (const std::string& name : train ? info.train_files : info.test_files) {
    paths.push_back(find_file(info, dir, name));
    if (paths.back().empty()) missing.push_back(name);
  }
  if (!missing.empty()) {
    fail(ErrorCode::io, kOp, info.name, ": directory '", dir, "' lacks ", join(missing), ": ",
         advice());
  }
  return paths;
}

ImageSet empty_set(const SetInfo& info) {
  ImageSet set;
  set.c = info.c;
  set.classes = static_cast<int>(info.class_names.size());
  set.class_names = info.class_names;
  set.mean = info.mean;
  set.std = info.std;
  set.name = info.name;
  return set;
}

void check_labels(const IdxArray& labels, int classes, const std::string& path) {
  const auto bad = std::ranges::find_if(labels.bytes, [&](uint8_t y) { return y >= classes; });
  if (bad == labels.bytes.end()) return;
  fail(ErrorCode::io, kOp, "'", path, "': label ", *bad, " at index ", bad - labels.bytes.begin(),
       ", expected below ", classes);
}

IdxArray read_bytes(const std::string& path, int rank) {
  IdxArray array = read_idx(path, rank);
  if (array.type != IdxType::u8 || array.shape.numel() == 0) {
    fail(ErrorCode::io, kOp, "'", path, "': expected a non-empty array of u8, got ", array.type,
         array.shape);
  }
  return array;
}

ImageSet load_idx_set(std::string_view name, const std::string& dir, bool train) {
  const SetInfo& info = set_info(name);
  const std::vector<std::string> paths = find_files(info, dir, train);
  IdxArray images = read_bytes(paths[0], 3);
  IdxArray labels = read_bytes(paths[1], 1);
  if (images.shape[0] != labels.shape[0]) {
    fail(ErrorCode::io, kOp, "'", paths[0], "' holds ", images.shape[0], " images, but '", paths[1],
         "' holds ", labels.shape[0], " labels");
  }
  ImageSet set = empty_set(info);
  check_labels(labels, set.classes, paths[1]);
  set.n = images.shape[0];
  set.h = images.shape[1];
  set.w = images.shape[2];
  set.images = std::move(images.bytes);
  set.labels = std::move(labels.bytes);
  return set;
}

}  // namespace

ImageSet load_mnist(const std::string& dir, bool train) {
  return load_idx_set("mnist", dir, train);
}

ImageSet load_fashion_mnist(const std::string& dir, bool train) {
  return load_idx_set("fashion-mnist", dir, train);
}

ImageSet load_cifar10(const std::string& dir, bool train) {
  const SetInfo& info = set_info("cifar10");
  ImageSet set = empty_set(info);
  set.h = set.w = 32;
  for (const std::string& path : find_files(info, dir, train)) append_cifar10(set, path);
  return set;
}

ImageSet load_image_set(std::string_view name, const std::string& dir, bool train) {
  return set_info(name).load(dir, train);
}

std::string default_data_dir(std::string_view name) {
  return std::string(set_info(name).package_dir);
}

}  // namespace gradus::nn
