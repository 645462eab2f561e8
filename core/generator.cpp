#include "core/generator.h"

#include <cmath>
#include <map>
#include <memory>

#include "core/launch.h"
#include "core/ops/random.h"
#include "core/tolerance.h"

namespace gradus {
namespace {

struct DefaultGenerators {
  Seeding seeding;
  std::map<std::pair<DeviceType, int>, std::unique_ptr<Generator>> by_device;
};

DefaultGenerators& default_generators() {
  thread_local DefaultGenerators generators;
  return generators;
}

std::vector<int64_t> values_of(const Generator::State& state) {
  return {static_cast<int64_t>(state.seed), state.calls};
}

// Draws `args` into a new tensor.
Tensor drawn(Random args, const Shape& shape, const TensorOptions& options, Generator* generator) {
  Generator& source = generator == nullptr ? default_generator(options.device) : *generator;
  check(source.device() == options.device, "random", "expected a generator on ", options.device,
        ", got one on ", source.device());
  // Memory is taken before the launch: where that throws, no call is counted.
  Tensor y = Tensor::empty(shape, options);
  const bool is_ready = y.is_contiguous();
  const TensorOptions contiguous{.dtype = options.dtype, .device = options.device};
  const Tensor rows = is_ready ? y : Tensor::empty(shape, contiguous);
  args.state = source.tensor().raw();
  args.y = rows.raw();
  launch(args);
  return is_ready ? y : y.copy_(rows);
}

void check_floating(DType dtype, std::string_view op) {
  check(is_floating(dtype), op, "expected a floating dtype, got ", dtype);
}

}  // namespace

Generator::Generator(Device device, uint64_t seed)
    : state_(Tensor::from_vector(values_of({.seed = seed}), {2},
                                 {.dtype = DType::i64, .device = device})) {}

Generator::State Generator::state() const {
  const std::vector<int64_t> values = state_.to_vector<int64_t>();
  return {.seed = static_cast<uint64_t>(values[0]), .calls = values[1]};
}

void Generator::set_state(const State& state) {
  check(state.calls >= 0, "generator", "calls must not be negative, got ", state.calls);
  state_.copy_(Tensor::from_vector(values_of(state), {2}));
}

Generator& default_generator(Device device) {
  DefaultGenerators& all = default_generators();
  const std::pair key{device.type, device.index};
  const auto found = all.by_device.find(key);
  if (found != all.by_device.end()) return *found->second;
  // Made first: where this throws, nothing is left behind.
  auto generator = std::make_unique<Generator>(device, all.seeding.seed);
  return *all.by_device.emplace(key, std::move(generator)).first->second;
}

void manual_seed(uint64_t seed) {
  DefaultGenerators& all = default_generators();
  all.seeding = {.seed = seed, .count = all.seeding.count + 1};
  for (auto& [device, generator] : all.by_device) generator->manual_seed(seed);
}

Seeding seeding() { return default_generators().seeding; }

Tensor rand(const Shape& shape, const TensorOptions& options, Generator* generator, double low,
            double high) {
  check_floating(options.dtype, "rand");
  const double distance = round_to(high - low, acc_dtype(options.dtype));
  check(low <= high && std::isfinite(distance), "rand",
        "expected low <= high of a finite distance, got ", low, " and ", high);
  const bool fits =
      std::isfinite(round_to(low, options.dtype)) && std::isfinite(round_to(high, options.dtype));
  check(fits, "rand", "values from ", low, " to ", high, " do not fit ", options.dtype);
  return drawn({.kind = Random::Kind::uniform, .a = low, .b = high}, shape, options, generator);
}

Tensor randn(const Shape& shape, const TensorOptions& options, Generator* generator, double mean,
             double std) {
  check_floating(options.dtype, "randn");
  check(std >= 0, "randn", "std must not be negative, got ", std);
  return drawn({.kind = Random::Kind::normal, .a = mean, .b = std}, shape, options, generator);
}

Tensor randint(int64_t low, int64_t high, const Shape& shape, const TensorOptions& options,
               Generator* generator) {
  check(!is_floating(options.dtype), "randint", "expected u8, i32 or i64, got ", options.dtype);
  check(low < high, "randint", "expected low < high, got ", low, " and ", high);
  const bool fits = options.dtype == DType::i64 ||
                    (options.dtype == DType::u8 && low >= 0 && high <= 256) ||
                    (options.dtype == DType::i32 && low >= INT32_MIN && high - 1 <= INT32_MAX);
  check(fits, "randint", "values from ", low, " to ", high - 1, " do not fit ", options.dtype);
  return drawn({.kind = Random::Kind::integer, .low = low, .high = high}, shape, options,
               generator);
}

Tensor bernoulli(double p, const Shape& shape, const TensorOptions& options, Generator* generator) {
  check(p >= 0 && p <= 1, "bernoulli", "expected a probability, got ", p);
  return drawn({.kind = Random::Kind::bernoulli, .a = p}, shape, options, generator);
}

}  // namespace gradus
