// Trainer's state: what a resume file holds, the hash, and the search for a value that is not
// finite.
#include <charconv>

#include "autograd/grad_mode.h"
#include "core/generator.h"
#include "nn/finite_check.h"
#include "nn/io/tensor_bytes.h"
#include "nn/match.h"
#include "nn/trainer.h"

namespace gradus::nn {
namespace {

constexpr std::string_view kModel = "model.", kOptimizer = "optimizer.";

// Copies on the host: the run may go on while the state is kept.
void append_copies(std::vector<NamedTensor>& all, std::string_view prefix,
                   const std::vector<NamedTensor>& part) {
  for (const NamedTensor& entry : part) {
    const Tensor live = entry.tensor.detach();
    all.push_back({concat(prefix, entry.name), live.device() == kCpu ? live.clone() : live.cpu()});
  }
}

std::vector<NamedTensor> with_prefix(const std::vector<NamedTensor>& all, std::string_view prefix) {
  std::vector<NamedTensor> part;
  for (const NamedTensor& entry : all) {
    if (entry.name.starts_with(prefix)) {
      part.push_back({entry.name.substr(prefix.size()), entry.tensor});
    }
  }
  return part;
}

const std::string& value_of(const TrainerState& state, const std::string& key) {
  const auto found = state.values.find(key);
  check(found != state.values.end(), "resume", "the state lacks '", key, "'");
  return found->second;
}

int64_t number_of(const TrainerState& state, const std::string& key) {
  const std::string& text = value_of(state, key);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  check(error == std::errc() && end == text.data() + text.size(), "resume", "'", key,
        "' must be a number, got '", text, "'");
  return number;
}

void hash_bytes(uint64_t& hash, const void* data, size_t count) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < count; ++i) hash = (hash ^ bytes[i]) * 0x100000001B3ull;
}

}  // namespace

std::map<std::string, std::string> Trainer::settings() const {
  return {{"optimizer", concat(optimizer_.name(), ": ", optimizer_.settings())},
          {"loader", train_.settings()},
          {"precision", to_string(options_.precision)}};
}

// Of the generator that dropout draws from.
Tensor Trainer::generator_state() const {
  return default_generator(train_.options().device).tensor();
}

TrainerState Trainer::state() {
  TrainerState state{.tensors = {}, .values = settings()};
  append_copies(state.tensors, kModel, model_.state_dict());
  append_copies(state.tensors, kOptimizer, optimizer_.state());
  append_copies(state.tensors, "", {{"generator", generator_state()}, {"totals", totals_}});
  state.values["epoch"] = std::to_string(train_.position().epoch);
  state.values["samples"] = std::to_string(train_.position().samples);
  state.values["drawn"] = std::to_string(train_.position().drawn);
  return state;
}

void Trainer::restore(const TrainerState& state) {
  const std::vector<NamedTensor> own = this->state().tensors;
  const std::vector<Tensor> values = match_by_name(own, state.tensors, "resume");
  for (const auto& [key, mine] : settings()) {
    const std::string& given = value_of(state, key);
    check(mine == given, "resume", key, " is '", mine, "' in this run and '", given,
          "' in the file");
  }
  const LoaderPosition position{.epoch = number_of(state, "epoch"),
                                .samples = number_of(state, "samples"),
                                .drawn = number_of(state, "drawn")};
  const std::vector<NamedTensor> optimizer_state = with_prefix(state.tensors, kOptimizer);
  optimizer_.check_state(optimizer_state);
  train_.restore(position);  // the last that may throw
  model_.load_state_dict(with_prefix(state.tensors, kModel));
  optimizer_.load_state(optimizer_state);
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i].name == "generator") generator_state().copy_(values[i]);
    if (own[i].name == "totals") totals_.copy_(values[i]);
  }
  failed_step_.fill_(-1);
}

void Trainer::throw_if_failed() {
  const int64_t failed = failed_step_.item<int64_t>();
  if (failed < 0) return;
  // The failed batch again: the optimizer has changed nothing since.
  const LoaderPosition now = train_.position();
  const int64_t size = train_.options().batch_size;
  const int64_t done = (now.samples + size - 1) / size;
  const int64_t at = done - (optimizer_.steps() - failed);
  std::string place;
  if (at >= 0) {
    const PrecisionGuard precision(options_.precision);
    train_.restore({now.epoch, at * size, now.drawn - (now.samples - at * size)});
    place = first_non_finite(model_, train_.next()->x);
    train_.restore(now);
  }
  fail(ErrorCode::invalid_argument, "trainer", "the loss of step ", failed, " (epoch ", now.epoch,
       ") is not finite; the first value that is not: ", place.empty() ? "the loss" : place);
}

std::string parameter_hash(Module& model) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const NamedTensor& entry : model.state_dict()) {
    const std::string head = concat(entry.name, " ", entry.tensor.dtype(), entry.tensor.shape());
    hash_bytes(hash, head.data(), head.size());
    const std::vector<std::byte> bytes = to_bytes(entry.tensor);
    hash_bytes(hash, bytes.data(), bytes.size());
  }
  std::string text(16, '0');
  for (size_t i = 16; i-- > 0; hash >>= 4) text[i] = "0123456789abcdef"[hash & 15];
  return text;
}

}  // namespace gradus::nn
