// Running a recorded graph backwards.
//
// Every node has a number from one process-wide counter, so an operand's number is always smaller
// than its result's. backward() therefore pops the reachable nodes from the highest number down:
// each is popped after every user of its output. A heap and a loop; no recursion, whatever the
// depth.
//
// Kernels always write; only the tape adds. It adds in place only where it is the sole owner of the
// buffer, and into a new tensor otherwise, so no two gradients ever share memory by accident.
#pragma once

#include <string>

#include "autograd/node.h"

namespace gradus {

// Adds the gradients of `y` with respect to every leaf that asks for one to the leaf's grad().
// dy: gradient of `y`, same shape and dtype; undefined means 1 and needs y to have one element.
// Throws `autograd` when y carries no history or its graph has been freed. Runs under NoGradGuard:
// the gradients carry no history themselves (double backward is not supported).
void run_backward(const Tensor& y, const Tensor& dy, bool retain_graph);

// The graph behind `y`, newest operation first: one line per node, "17 relu <- 16 batch_norm".
std::string tape_text(const Tensor& y);
// The same in Graphviz's DOT language.
std::string tape_dot(const Tensor& y);

// `tensor` in `format`, copied only if it is not stored so already; without history.
Tensor dense(const Tensor& tensor, MemoryFormat format = MemoryFormat::contiguous);
// `tensor` itself if it is contiguous or channels-last, else a contiguous copy; with its history.
Tensor dense_either(const Tensor& tensor);

}  // namespace gradus
