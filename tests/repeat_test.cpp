// Optimizers, clipping and running statistics give the same bits again, on the CPU with any number
// of threads; ops with cases: the Repeat tests of each.
#include "autograd/ops/batch_norm.h"
#include "autograd/ops/instance_norm.h"
#include "core/generator.h"
#include "cpu/context.h"
#include "nn/optim/adam.h"
#include "nn/optim/muon.h"
#include "tests/support/trainer_session.h"

namespace gradus {
namespace {

class BitsTest : public test::EachDevice {
 protected:
  ~BitsTest() override { cpu().set_threads(threads_); }

  // What `run` returns twice and, on the CPU, with 1, 2 and 3 threads.
  template <class F>
  void expect_same(const F& run, const char* what) {
    const auto first = run();
    EXPECT_EQ(run(), first) << what << ", two runs";
    if (GetParam() != kCpu) return;
    for (const int threads : {1, 2, 3}) {
      cpu().set_threads(threads);
      EXPECT_EQ(run(), first) << what << ", " << threads << " threads";
    }
    cpu().set_threads(threads_);
  }

 private:
  const int threads_ = cpu().threads();
};
GRADUS_ON_EACH_DEVICE(BitsTest);

TEST_P(BitsTest, OfOptimizersAndClippingRepeat) {
  using Made = std::unique_ptr<nn::Optimizer>;
  struct Choice {
    const char* name;
    Made (*make)(nn::Module& net);
  };
  const Choice choices[] = {
      {"sgd",
       [](nn::Module& net) -> Made {
         return std::make_unique<nn::SGD>(net.named_parameters(), nn::SGDOptions{.momentum = 0.9});
       }},
      {"adam",
       [](nn::Module& net) -> Made { return std::make_unique<nn::Adam>(net.named_parameters()); }},
      {"adamw",
       [](nn::Module& net) -> Made { return std::make_unique<nn::AdamW>(net.named_parameters()); }},
      {"muon",
       [](nn::Module& net) -> Made {
         return std::make_unique<nn::Muon>(nn::split_for_muon(net), nn::MuonOptions{});
       }},
  };
  for (const Choice& choice : choices) {
    const auto train = [&] {
      test::Session run(GetParam(), 1, 96);
      run.optimizer = choice.make(run.net);
      run.options.clip_norm = 0.5, run.options.clip_value = 0.1;
      run.start().run();
      return run.hash();
    };
    expect_same(train, choice.name);
  }
}

TEST_P(BitsTest, OfRunningStatisticsRepeat) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      const Tensor values = randn({8, 24, 20, 20}, {.dtype = dtype, .device = GetParam()});
      const Tensor x = values.contiguous(format);
      const TensorOptions options{.dtype = acc_dtype(dtype), .device = GetParam()};
      for (const bool instance : {false, true}) {
        const auto update = [&] {
          const Tensor mean = Tensor::zeros({24}, options), var = Tensor::ones({24}, options);
          if (instance) {
            instance_norm(x, {}, {}, {mean, var});
          } else {
            batch_norm(x, {}, {}, {mean, var, {}}, {.training = true});
          }
          std::vector<double> all = mean.to_vector<double>();
          for (const double value : var.to_vector<double>()) all.push_back(value);
          return all;
        };
        expect_same(update, instance ? "instance_norm" : "batch_norm");
      }
    }
  }
}

}  // namespace
}  // namespace gradus
