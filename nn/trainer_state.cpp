// Trainer's state: what a resume file holds, the hash, and the search for a value that is not
// finite.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "autograd/grad_mode.h"
#include "core/generator.h"
#include "nn/evaluation.h"
#include "nn/finite_check.h"
#include "nn/host_copy.h"
#include "nn/io/fingerprint.h"
#include "nn/io/tensor_bytes.h"
#include "nn/match.h"
#include "nn/trainer.h"

namespace gradus::nn {
namespace {

constexpr std::string_view kModel = "model.", kOptimizer = "optimizer.";
const std::string kLayers = "layers";  // a key of the settings

void append(std::vector<NamedTensor>& all, std::string_view prefix,
            const std::vector<NamedTensor>& part) {
  for (const auto& [name, tensor] : part) all.push_back({concat(prefix, name), tensor});
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

std::vector<std::string_view> split(std::string_view list) {
  constexpr std::string_view kComma = ", ";
  std::vector<std::string_view> parts;
  for (size_t end; (end = list.find(kComma)) != std::string_view::npos;) {
    parts.push_back(list.substr(0, end));
    list.remove_prefix(end + kComma.size());
  }
  parts.push_back(list);
  return parts;
}

// Whether a file is from before these settings were added at the end of a list, and agrees in all
// others.
bool lacks_later_settings(std::string_view mine, std::string_view given) {
  if (!mine.starts_with(given)) return false;
  const std::string_view rest = mine.substr(given.size());
  return rest.starts_with(", pixels ") || rest.starts_with(", lr ");
}

// Both are a value or a list of "name value" pairs; throws for the first that differs.
void check_same(std::string_view key, std::string_view mine, std::string_view given) {
  const auto a = split(mine), b = split(given);
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const size_t name = a[i].rfind(' ');
    if (a[i] == b[i] || name == std::string_view::npos || name != b[i].rfind(' ')) continue;
    check(a[i].substr(0, name) != b[i].substr(0, name), "resume", a[i].substr(0, name), " is ",
          a[i].substr(name + 1), " in this run and ", b[i].substr(name + 1), " in the file");
  }
  check(mine == given, "resume", key, " is ", mine, " in this run and ", given, " in the file");
}

// A state is taken after a whole step only.
void check_position(const LoaderPosition& at, const DataLoader& loader, int64_t epochs) {
  check(at.epoch >= 0 && at.epoch <= epochs, "resume", "expected 0 to ", epochs,
        " epochs done, got ", at.epoch, " in the file");
  const int64_t size = loader.options().batch_size;
  check(at.samples % size == 0 || at.samples == loader.samples_per_epoch(), "resume",
        "samples must be a multiple of batch_size ", size, ", got ", at.samples, " in the file");
  check(at.drawn >= at.samples && at.drawn <= int64_t{1} << 53, "resume",
        "drawn must be samples to 2^53, got ", at.drawn, " in the file");
}

}  // namespace

std::string layers_text(Module& model) {
  std::string text;
  for (const Module::Entry& entry : model.modules()) {
    if (entry.path.empty()) continue;
    text += concat(text.empty() ? "" : ", ", "layer ", entry.path, " ", entry.module->kind());
  }
  return text;
}

std::map<std::string, std::string> Trainer::settings() const {
  return {
      {kLayers, layers_text(model_)},
      {"clipping", concat("clip_value ", options_.clip_value, ", clip_norm ", options_.clip_norm)},
      {"epochs", std::to_string(options_.epochs)},
      {"optimizer", concat(optimizer_.name(), ": ", optimizer_.settings())},
      {"loader", train_.settings()},
      {"precision", to_string(options_.precision)}};
}

// Of the generator that dropout draws from.
Tensor Trainer::generator_state() const {
  return default_generator(train_.options().device).tensor();
}

// Copies: the run may go on while the state is kept.
TrainerState Trainer::state() {
  TrainerState state{.tensors = {}, .values = settings()};
  append(state.tensors, kModel, host_copies(model_.state_dict()));
  append(state.tensors, kOptimizer, optimizer_.state());
  append(state.tensors, "", host_copies({{"generator", generator_state()}, {"totals", totals_}}));
  state.values["epoch"] = std::to_string(train_.position().epoch);
  state.values["samples"] = std::to_string(train_.position().samples);
  state.values["drawn"] = std::to_string(train_.position().drawn);
  return state;
}

void Trainer::restore(const TrainerState& state) {
  const std::map<std::string, std::string> settings = this->settings();
  for (const auto& [key, mine] : settings) {
    if (key == kLayers) continue;
    const std::string& given = value_of(state, key);
    if (!lacks_later_settings(mine, given)) check_same(key, mine, given);
  }
  const std::vector<NamedTensor> own = this->state().tensors;
  const std::vector<Tensor> values = match_by_name(own, state.tensors, "resume");
  // After the parameters, whose names and shapes tell more of another network.
  check_same(kLayers, settings.at(kLayers), value_of(state, kLayers));
  const LoaderPosition position{.epoch = number_of(state, "epoch"),
                                .samples = number_of(state, "samples"),
                                .drawn = number_of(state, "drawn")};
  const std::vector<NamedTensor> optimizer_state = with_prefix(state.tensors, kOptimizer);
  optimizer_.check_state(optimizer_state);
  check_position(position, train_, options_.epochs);
  train_.restore(position);  // the last that may throw
  model_.load_state_dict(with_prefix(state.tensors, kModel));
  optimizer_.load_state(optimizer_state);
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i].name == "generator") generator_state().copy_(values[i]);
    if (own[i].name == "totals") totals_.copy_(values[i]);
  }
  failed_step_.fill_(-1);
  captured_step_.forget();  // it holds when each parameter joined
}

void Trainer::throw_if_failed() {
  const int64_t failed = failed_step_.item<int64_t>();
  if (failed < 0) return;
  // The failed batch again: the optimizer has changed nothing since.
  const LoaderPosition now = train_.position();
  const int64_t size = train_.options().batch_size;
  const int64_t done = (now.samples + size - 1) / size;
  const int64_t at = done - (optimizer_.steps() - failed);
  const int64_t since_first = now.epoch * train_.batches() + at;
  std::string place;
  if (at >= 0) {
    const PrecisionGuard precision(options_.precision);
    place = keep_position(train_, [&] {
      train_.restore({now.epoch, at * size, now.drawn - (now.samples - at * size)});
      return first_non_finite(model_, train_.next()->x);
    });
  }
  fail(ErrorCode::invalid_argument, "trainer", "the loss of epoch ",
       since_first / train_.batches() + 1, ", step ", since_first % train_.batches() + 1,
       " is not finite; the first value that is not: ", place.empty() ? "the loss" : place);
}

void Trainer::check_state_is_finite() {
  const std::string place = first_non_finite_state(model_);
  if (place.empty()) return;
  const LoaderPosition& at = train_.position();
  const int64_t size = train_.options().batch_size;
  fail(ErrorCode::invalid_argument, "trainer", place, " is not finite after epoch ", at.epoch + 1,
       ", step ", (at.samples + size - 1) / size);
}

void Trainer::check_is_finite(const Metrics& metrics, DataLoader& test) {
  if (std::isfinite(metrics.loss)) return;
  // The failed batch again.
  const PrecisionGuard precision(options_.precision);
  const EvaluationGuard evaluation(model_);
  const std::string place = keep_position(test, [&]() -> std::string {
    test.start_epoch(0);
    while (const std::optional<Batch> batch = test.next()) {
      std::string found = first_non_finite(model_, batch->x);
      if (!found.empty()) return found;
    }
    return "the loss";
  });
  fail(ErrorCode::invalid_argument, "trainer", "the test loss after epoch ",
       train_.position().epoch + 1, ", step ", train_.batches(),
       " is not finite; the first value that is not: ", place);
}

std::string parameter_hash(Module& model) {
  Fingerprint fingerprint;
  for (const NamedTensor& entry : model.state_dict()) {
    const std::string head = concat(entry.name, " ", entry.tensor.dtype(), entry.tensor.shape());
    fingerprint.add(head);
    fingerprint.add(to_bytes(entry.tensor));
  }
  return fingerprint.text();
}

}  // namespace gradus::nn
