// Module: a layer or a whole network. It lists what it owns (parameters, buffers, children) in one
// function, list(); names, device and dtype moves, state_dict and gradients all follow from that.
//
//   struct Net final : nn::Module {
//     nn::Linear hidden{784, 128}, out{128, 10};
//     std::string_view kind() const override { return "Net"; }
//     void list(nn::Contents& own) override { own.child("hidden", hidden), own.child("out", out); }
//     Tensor forward(const Tensor& x) override { return out(relu(hidden(x))); }
//   };
//
// Names are those of the same PyTorch module's state_dict:
// https://pytorch.org/docs/stable/generated/torch.nn.Module.html
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace gradus::nn {

class Module;

// What a tensor of a module is.
enum class Role : uint8_t {
  parameter,  // trained
  buffer,     // changed by forward only
};

// The dtype that Module::to(dtype) stores a tensor in: `dtype` itself, or acc_dtype(dtype) as norms
// and biases want it.
enum class Stored : uint8_t { value, acc };

// Filled by Module::list with references to the module's members, in the order of state_dict.
// Undefined tensors (no bias) are left out.
class Contents {
 public:
  struct Item {
    std::string name;
    Tensor* tensor;
    Role role;
    Stored stored;
  };
  struct Child {
    std::string name;
    Module* module;
  };

  void parameter(std::string name, Tensor& tensor, Stored stored = Stored::value) {
    add(std::move(name), tensor, Role::parameter, stored);
  }
  void buffer(std::string name, Tensor& tensor, Stored stored = Stored::value) {
    add(std::move(name), tensor, Role::buffer, stored);
  }
  void child(std::string name, Module& module) { children.push_back({std::move(name), &module}); }

  std::vector<Item> tensors;
  std::vector<Child> children;

 private:
  void add(std::string name, Tensor& tensor, Role role, Stored stored) {
    if (tensor.defined()) tensors.push_back({std::move(name), &tensor, role, stored});
  }
};

// The longest sums behind the values of a layer: what tolerances of a comparison come from
// (core/tolerance.h).
struct SumLengths {
  int64_t y = 1, dx = 1, parameters = 1;
  bool rounds_between = false;  // results in between are rounded to the storage dtype, too
};

struct NamedTensor {
  std::string name;  // "0.weight", "1.running_mean"
  Tensor tensor;
};

// What load_state_dict found; empty lists when everything fitted.
struct LoadReport {
  std::vector<std::string> missing;     // in the module, not in the source
  std::vector<std::string> unexpected;  // in the source, not in the module
  std::vector<std::string> mismatched;  // "0.weight expected [32,1,3,3], got [32,3,3,3]"
  bool ok() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
};

std::string to_string(const LoadReport& report);  // one line, the first few of each kind

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  // Moving is for passing a layer into its parent; copies would share parameters unseen.
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;

  // forward(x). A gradus::Error thrown inside gets the caller's name for this module in front,
  // "0.conv2d: ...": of several names, one after the other as its calls follow each other. Threads
  // may share a module for forwards that change nothing in it, as evaluation does.
  Tensor operator()(const Tensor& x);

  virtual std::string_view kind() const = 0;  // "Conv2d"
  virtual Tensor forward(const Tensor& x) = 0;
  virtual void list(Contents&) {}
  // For x and y of these shapes. By default as many values as the largest of x, y and the
  // parameters has, and results in between; a layer that knows better can be judged by a tighter
  // tolerance.
  virtual SumLengths sum_lengths(const Shape& x, const Shape& y);

  void train(bool on = true);  // this module and everything in it
  void eval() { train(false); }
  bool training() const { return training_; }

  // Moves or converts all tensors of this module and everything in it that are not so already. They
  // get new memory, a shared one once: create the optimizer afterwards.
  void to(Device device);
  void to(DType dtype);  // floating; integer buffers stay

  std::vector<NamedTensor> named_parameters();  // a shared one once, under its first name
  std::vector<Tensor> parameters();
  int64_t parameter_count();  // elements
  // Parameters and buffers, sharing memory with the module.
  std::vector<NamedTensor> state_dict();

  // Copies values by name, converting dtype and device. Strict: throws invalid_argument unless the
  // names and shapes are the same, and changes nothing then. Otherwise copies what fits.
  LoadReport load_state_dict(const std::vector<NamedTensor>& source, bool strict = true);

  void zero_grad();  // forgets all gradients

  struct Entry {
    std::string path;  // "" for this module, "3.body.0"
    Module* module;
  };
  std::vector<Entry> modules();  // this one first, then depth first

 private:
  struct Slot {
    std::string path;
    Contents::Item item;
  };
  std::vector<Slot> slots();

  bool training_ = true;
};

}  // namespace gradus::nn
