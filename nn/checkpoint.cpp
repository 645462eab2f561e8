#include "nn/checkpoint.h"

#include "nn/io/safetensors.h"
#include "nn/io/tensor_bytes.h"

namespace gradus::nn {
namespace {

constexpr std::string_view kFormat = "gradus-resume";
constexpr std::string_view kVersionWithoutChecksum = "1";

void write_tensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                   const std::map<std::string, std::string>& metadata) {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<SafeTensorView> views;
  for (const NamedTensor& entry : tensors) bytes.push_back(to_bytes(entry.tensor));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i].tensor;
    views.push_back({tensors[i].name, tensor.dtype(), tensor.shape(), bytes[i]});
  }
  write_safetensors(path, views, metadata, true);
}

std::vector<NamedTensor> to_tensors(const SafeTensors& file) {
  std::vector<NamedTensor> tensors;
  for (const SafeTensor& entry : file.tensors) {
    tensors.push_back({entry.name, from_bytes(entry.bytes, entry.dtype, entry.shape)});
  }
  return tensors;
}

}  // namespace

void save_weights(const std::string& path, Module& model) {
  write_tensors(path, model.state_dict(), {{"format", "pt"}});
}

LoadReport load_weights(const std::string& path, Module& model, bool strict) {
  return model.load_state_dict(to_tensors(read_safetensors(path)), strict);
}

void save_resume(const std::string& path, const TrainerState& state) {
  std::map<std::string, std::string> metadata = state.values;
  metadata["format"] = kFormat;
  metadata["version"] = std::to_string(kResumeVersion);
  write_tensors(path, state.tensors, metadata);
}

TrainerState load_resume(const std::string& path) {
  const SafeTensors file = read_safetensors(path);
  TrainerState state{.tensors = to_tensors(file), .values = file.metadata};
  const auto metadata = [&](const std::string& key) {
    const auto found = state.values.find(key);
    return found == state.values.end() ? std::string() : found->second;
  };
  const std::string format = metadata("format"), version = metadata("version");
  if (format != kFormat) {
    fail(ErrorCode::io, "load_resume", "'", path, "': expected a file of format ", kFormat,
         ", got '", format, "'");
  }
  const std::string newest = std::to_string(kResumeVersion);
  if (version != newest && version != kVersionWithoutChecksum) {
    fail(ErrorCode::io, "load_resume", "'", path, "': expected version ", newest, ", got '",
         version, "'");
  }
  if (version == newest && metadata(std::string(kChecksumKey)).empty()) {
    fail(ErrorCode::io, "load_resume", "'", path, "': the file is damaged: it lacks ",
         kChecksumKey);
  }
  return state;
}

}  // namespace gradus::nn
