// The network of a resume file, built from what the file says of it.
//
//   nn::ModelFile saved = nn::load_model("run.resume");
//   saved.network.eval();
//   Tensor logits = saved.network(x);
#pragma once

#include "nn/models.h"
#include "nn/trainer.h"

namespace gradus::nn {

struct ModelFile {
  std::string name;      // of make_model
  ModelOptions options;  // with the size of the images that it was trained on
  Sequential network;    // with the file's parameters and buffers, on the CPU, in training mode
};

// A network of make_model() whose layers and shapes are those of the run. Throws io for a file that
// is damaged or no resume file, and unsupported for the network of another program.
ModelFile load_model(const std::string& path);

}  // namespace gradus::nn
