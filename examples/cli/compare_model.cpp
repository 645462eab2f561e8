// `gradus compare --model`: a network, and a batch for it.

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/generator.h"
#include "examples/cli/compare_network.h"
#include "nn/compare/compare.h"
#include "nn/model_file.h"

namespace gradus::cli {
namespace {

constexpr const char* kDataSet = "fashion-mnist";

bool is_name(const std::string& text) {
  const std::vector<std::string> names = nn::model_names();
  return std::ranges::find(names, text) != names.end();
}

std::string data_dir(const CompareCommand& o) {
  if (!o.data.empty()) return o.data;
  const std::string dir = nn::default_data_dir(kDataSet);
  return std::filesystem::is_directory(dir) ? dir : "";
}

// Images of standard normal pixels, with random labels.
nn::Batch drawn_batch(const Shape& shape, int64_t classes, uint64_t seed, int64_t number) {
  Generator generator(kCpu);
  generator.set_state({.seed = seed, .calls = 2 * number});
  nn::Batch batch;
  batch.x = randn(shape, {}, &generator);
  batch.labels = randint(0, classes, {shape[0]}, {.dtype = DType::i64}, &generator);
  return batch;
}

}  // namespace

ComparedNetwork::ComparedNetwork(const CompareCommand& o) : o_(o) {
  const std::string name = o.network.empty() ? "small_cnn" : o.network;
  const std::string dir = o.shape ? "" : data_dir(o);
  if (o.shape) image_ = {(*o.shape)[1], (*o.shape)[2], (*o.shape)[3]};
  if (!is_name(name)) {
    std::error_code ignored;
    check(std::filesystem::exists(name, ignored), "compare", "'", name, "' is neither a network (",
          fmt::format("{}", fmt::join(nn::model_names(), ", ")), ") nor a file that exists");
    file_ = nn::load_model(name);
    const Shape of_file{file_->options.channels, file_->options.height, file_->options.width};
    check(!o.shape || image_ == of_file, "compare", "the network in '", name, "' takes images of ",
          of_file, ", got --shape ", o.shape.value_or(Shape()));
    image_ = of_file;
    classes_ = file_->options.classes;
  }
  name_ = file_ ? file_->name : name;
  if (!dir.empty()) {
    nn::ImageSet set = nn::load_image_set(kDataSet, dir, true);
    const bool fits = !file_ || (Shape{set.c, set.h, set.w} == image_ && set.classes == classes_);
    check(fits || o.data.empty(), "compare", "the network in '", name, "' takes images of ", image_,
          ", which those in '", o.data, "' are not");
    if (fits) {
      image_ = {set.c, set.h, set.w}, classes_ = set.classes;
      loader_.emplace(std::move(set),
                      nn::LoaderOptions{.batch_size = o.batch_size, .seed = o.seed});
      loader_->start_epoch(0);
    }
  }
  batch_size_ = o.shape ? (*o.shape)[0] : o.batch_size;
}

std::unique_ptr<nn::Module> ComparedNetwork::make() {
  RunOptions options = o_;
  options.model = name_;
  if (file_) options.norm = file_->options.norm, options.activation = file_->options.activation;
  auto network = std::make_unique<nn::Sequential>(
      make_network(options, image_[0], image_[1], image_[2], classes_, kCpu));
  if (file_) network->load_state_dict(file_->network.state_dict());
  return network;
}

nn::Batch ComparedNetwork::next_batch() {
  if (!loader_) {
    return drawn_batch({batch_size_, image_[0], image_[1], image_[2]}, classes_, o_.seed, drawn_++);
  }
  if (loader_->next_batch_size() == 0) loader_->start_epoch(loader_->position().epoch + 1);
  return *loader_->next();
}

CompareReport compare_model(const CompareCommand& o) {
  ComparedNetwork network(o);
  const auto model = network.make();
  CompareReport report =
      compare(*model, network.next_batch(),
              {.dtypes = o.dtypes, .tolerance = o.tolerance, .seed = o.seed, .repeats = o.repeats});
  report.model = network.name();
  if (!network.has_data()) report.missing.push_back("The batch is of images drawn at random.");
  for (CompareDevice& device : report.devices) device.text = describe(device.device);
  return report;
}

}  // namespace gradus::cli
