// Watching a forward pass from outside: called after every module with its path, input and output.
//
//   ForwardObserver observer([&](const ForwardEvent& event) { print(event.path, event.y); });
//   model(x);
#pragma once

#include <functional>
#include <string>

#include "nn/module.h"

namespace gradus::nn {

struct ForwardEvent {
  // "" for the outermost module, "3.body.0". A module that its caller lists under several names has
  // them in turn, as its calls follow each other.
  std::string path;
  Module& module;
  const Tensor& x;
  const Tensor& y;
};

// Active on this thread from construction to destruction; an outer observer pauses meanwhile.
class ForwardObserver {
 public:
  using Callback = std::function<void(const ForwardEvent&)>;
  explicit ForwardObserver(Callback callback);
  ~ForwardObserver();
  ForwardObserver(const ForwardObserver&) = delete;
  ForwardObserver& operator=(const ForwardObserver&) = delete;

  static const ForwardObserver* current();
  void notify(const ForwardEvent& event) const { callback_(event); }

 private:
  Callback callback_;
  const ForwardObserver* outer_;
};

// Stands in for modules: while it lives, calling a module gives what the callback returns, and its
// forward is not run. For running one module's own arithmetic with given results of its children:
//
//   ForwardReplacement given([&](Module& child, const Tensor& x) { return results[i++]; });
//   Tensor y = parent.forward(x);
class ForwardReplacement {
 public:
  using Callback = std::function<Tensor(Module& module, const Tensor& x)>;
  explicit ForwardReplacement(Callback callback);
  ~ForwardReplacement();
  ForwardReplacement(const ForwardReplacement&) = delete;
  ForwardReplacement& operator=(const ForwardReplacement&) = delete;

  static const ForwardReplacement* current();
  Tensor operator()(Module& module, const Tensor& x) const { return callback_(module, x); }

 private:
  Callback callback_;
  const ForwardReplacement* outer_;
};

}  // namespace gradus::nn
