// The network that `gradus compare` looks into, and batches for it.
#pragma once

#include <memory>

#include "examples/cli/compare_options.h"
#include "nn/data/loader.h"
#include "nn/model_file.h"

namespace gradus::cli {

class ComparedNetwork {
 public:
  // A new network or that of a resume file, for the images of the set, of --shape or of the file.
  explicit ComparedNetwork(const CompareCommand& o);  // which must outlive it

  std::unique_ptr<nn::Module> make();  // the same one each time, on the CPU
  nn::Batch next_batch();              // on the CPU
  const std::string& name() const { return name_; }
  bool has_data() const { return loader_.has_value(); }  // else images are drawn at random
  int64_t batch_size() const { return batch_size_; }

 private:
  const CompareCommand& o_;
  std::string name_;
  std::optional<nn::ModelFile> file_;
  Shape image_{1, 28, 28};  // [c, h, w]
  int64_t classes_ = 10;
  int64_t batch_size_ = 0;
  std::optional<nn::DataLoader> loader_;
  int64_t drawn_ = 0;
};

}  // namespace gradus::cli
