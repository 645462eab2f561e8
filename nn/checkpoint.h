// Weights and whole runs on disk. Both are safetensors files, written under a temporary name and
// renamed, so that an interruption leaves the old file, and hold a checksum of all their bytes, so
// that a damaged one is refused. Files without a checksum are read as they are.
//
//   nn::save_weights("net.safetensors", net);          // loads in PyTorch:
//   # net.load_state_dict(safetensors.torch.load_file("net.safetensors"))
//   nn::save_resume("run.resume", trainer.state());
//   trainer.restore(nn::load_resume("run.resume"));
#pragma once

#include <string>

#include "nn/module.h"
#include "nn/trainer.h"

namespace gradus::nn {

// Parameters and buffers under the names of state_dict.
void save_weights(const std::string& path, Module& model);

// Copies values by name, converting dtype and device. Strict: throws invalid_argument, naming what
// is missing, unexpected or of another shape, and changes nothing then. Throws io for a damaged
// file.
LoadReport load_weights(const std::string& path, Module& model, bool strict = true);

// The version that save_resume writes. load_resume takes version 1 too, which had no checksum.
inline constexpr int kResumeVersion = 2;

// The state of a run, with metadata "format": "gradus-resume" and "version".
void save_resume(const std::string& path, const TrainerState& state);
// Throws io unless the file is a whole resume file of such a version.
TrainerState load_resume(const std::string& path);

}  // namespace gradus::nn
