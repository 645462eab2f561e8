#!/usr/bin/env python3
"""`gradus bench layers` and PyTorch in turn, layer by layer, on one GPU: a table of ratios.

    python3 bench/torch_layers.py --gradus build/gradus [--layer NAME]... [--case PATTERN]
                                  [--dtype f32,bf16] [--cold | --warm] [--compile] [--json FILE]

A ratio above 1 means that gradus is faster than the better of PyTorch's eager mode and, with
--compile, torch.compile. Both sides run many calls in one CUDA graph, so that no host time counts;
cold rotates over copies of the operands of 400 MB in all, at least four. Backward includes the gradients of all
parameters and is timed alone on both sides: right behind its forward it would find in the cache what
that has just written. Losses, dropout and matrix products have no twin here. Needs PyTorch 2.5 or
later with CUDA.
"""
import argparse
import functools
import json
import re
import statistics
import subprocess
import sys
import tempfile

import torch
import torch._functorch.config
import torch.nn as nn

DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16,
          "bf16": torch.bfloat16}
COLD_BYTES = 400 << 20
LEAST_COPIES = 4  # a kernel may have told the cache what to keep
# As gradus measures: a card that has rested runs at higher clocks than one at work.
BLOCK_MS = 10
WARM_UP_BLOCKS = 5


class Call(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


class WithBias(nn.Module):
    """x and a parameter per channel."""

    def __init__(self, call, channels):
        super().__init__()
        self.call = call
        self.bias = nn.Parameter(torch.rand(channels, 1, 1) + 1)

    def forward(self, x):
        return self.call(x, self.bias)


def reduction(name, axes):
    if name == "norm2":
        return Call(lambda x: torch.linalg.vector_norm(x, dim=axes))
    if name in ("max", "min"):
        return Call(lambda x: getattr(torch, "a" + name)(x, dim=axes))
    if name == "prod":
        return Call(lambda x: x.prod(axes[0])) if len(axes) == 1 else None
    return Call(lambda x: getattr(torch, name)(x, dim=axes))


ACTIVATIONS = {
    "relu": nn.ReLU, "relu6": nn.ReLU6, "leaky_relu": nn.LeakyReLU, "elu": nn.ELU, "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU("tanh"), "silu": nn.SiLU, "mish": nn.Mish, "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh, "softplus": nn.Softplus, "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
}


def twin(layer, case, shape):
    """The PyTorch module that does what a case of gradus does, or None."""
    if layer == "batch_norm":
        return nn.BatchNorm2d(shape[1]).train(case.startswith("train"))
    if layer == "group_norm":
        return nn.GroupNorm(32, shape[1])
    if layer == "instance_norm":
        return nn.InstanceNorm2d(shape[1], affine=True)
    if layer == "layer_norm":
        return nn.LayerNorm(shape[1:])
    if layer == "rms_norm":
        return nn.RMSNorm(shape[1:])
    if layer == "local_response_norm":
        return nn.LocalResponseNorm(5)
    if layer == "softmax":
        kind = nn.LogSoftmax if case.startswith("log") else nn.Softmax
        return kind(0 if "columns" in case else 1)
    if layer == "activation":
        name = re.match(r"[a-z_]+?6?(?=_\d|_large|_small|$)", case)
        return ACTIVATIONS[name.group()]() if name else None
    if layer == "max_pool2d":
        return nn.MaxPool2d(3, 2, 1) if case.startswith("k3_s2_p1") else nn.MaxPool2d(2)
    if layer == "avg_pool2d":
        pixels = re.match(r"to_(\d+)x", case)
        return nn.AdaptiveAvgPool2d(int(pixels.group(1))) if pixels else nn.AvgPool2d(2)
    if layer in ("sum", "reduce"):
        name = re.match(r"[a-z]+2?", case).group()
        axes = re.search(r"_dim(\d+)_", case)
        return reduction(name, tuple(map(int, axes.group(1))) if axes else (1,))
    if layer == "arithmetic":
        name = re.match(r"(add|sub|mul|div)_bias_", case)
        return WithBias(getattr(torch, name.group(1)), shape[1]) if name else None
    return None


def graph_time(calls, repeats=15, side=None):
    """Median ms of one of the calls, all of them in one CUDA graph, captured on the stream `side`."""
    side = side or torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            calls[0]()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    rounds = max(1, 20 // len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(rounds):
            kept = [call() for call in calls]  # results of one round stay apart
            del kept

    def replay(count):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            graph.replay()
        stop.record()
        torch.cuda.synchronize()
        return start.elapsed_time(stop) / count

    replay(1)
    count = max(1, round(BLOCK_MS / replay(1)))
    times = [replay(count) for _ in range(WARM_UP_BLOCKS + repeats)][WARM_UP_BLOCKS:]
    del graph
    return statistics.median(times) / (rounds * len(calls))


def time_module(module, row, repeats=15):
    dtype, shape = DTYPES[row["dtype"]], json.loads(row["shape"])
    channels_last = "channels_last" in row["case"] or "nhwc" in row["case"]
    module = module.to("cuda", dtype)
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
    size = torch.Size(shape).numel() * torch.finfo(dtype).bits // 8
    copies = max(LEAST_COPIES, COLD_BYTES // (2 * size)) if row["cold"] else 1

    def operand():
        x = torch.randn(shape, device="cuda", dtype=dtype)
        if channels_last:
            x = x.to(memory_format=torch.channels_last)
        return x.requires_grad_()

    xs = [operand() for _ in range(copies)]
    with torch.no_grad():
        dys = [torch.randn_like(module(x)) for x in xs]
    forward = graph_time([lambda x=x: module(x) for x in xs], repeats)
    if row["case"].startswith("prod"):  # its backward waits for the device
        return forward, float("inf")
    parameters = list(module.parameters())
    side = torch.cuda.Stream()  # a backward runs where its forward ran
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        ys = [module(x) for x in xs]
    backward = graph_time([lambda x=x, y=y, dy=dy: torch.autograd.grad(y, [x] + parameters, dy,
                                                                       retain_graph=True)
                           for x, y, dy in zip(xs, ys, dys)], repeats, side)
    return forward, backward


@functools.lru_cache(maxsize=1)  # the cold and the warm row of a case follow each other
def modules(layer, case, shape, dtype, compiled):
    """PyTorch's modes by name, none where it has no such layer; dtype keeps them apart."""
    module = twin(layer, case, json.loads(shape))
    if module is None or not compiled:
        return {} if module is None else {"eager": module}
    torch._dynamo.reset()
    return {"eager": module, "compile": torch.compile(module)}


def rival(row, compiled):
    """Forward and backward ms by PyTorch's modes; none where it has no such layer."""
    modes = modules(row["layer"], row["case"], row["shape"], row["dtype"], compiled)
    times = {mode: time_module(module, row) for mode, module in modes.items()}
    return [{mode: ms[side] for mode, ms in times.items()} for side in (0, 1)]


def compile_row(row):
    """Fills the cache of torch.compile, on disk."""
    module = twin(row["layer"], row["case"], json.loads(row["shape"]))
    if module is not None:
        time_module(torch.compile(module), row | {"cold": False}, repeats=1)


def compile_in_parallel(args, layers):
    """A process per layer and dtype: compiling takes most of the time, one after the other minutes."""
    own = [sys.executable, __file__, "--gradus", args.gradus, "--case", args.case, "--compile-only"]
    own += [flag for flag in ("--cold", "--warm") if getattr(args, flag[2:])]
    processes = [subprocess.Popen(own + ["--layer", layer, "--dtype", dtype])
                 for layer in layers for dtype in args.dtype.split(",")]
    if any([process.wait() for process in processes]):
        sys.exit("torch.compile failed")


def run_gradus(args, layer):
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/rows.json"
        command = [args.gradus, "bench", "layers", "--device", "cuda", "--layer", layer,
                   "--case", args.case, "--dtype", args.dtype, "--json", path]
        command += [flag for flag in ("--cold", "--warm") if getattr(args, flag[2:])]
        command += ["--repeats", "0"] if args.compile_only else []
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


LAYERS = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm",
          "local_response_norm", "softmax", "activation", "max_pool2d", "avg_pool2d", "sum", "reduce",
          "arithmetic"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gradus", required=True)
    parser.add_argument("--layer", action="append", choices=LAYERS)
    parser.add_argument("--case", default="", help="only cases in whose name this regular expression matches")
    parser.add_argument("--dtype", default="f32,bf16")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--compile", action="store_true",
                        help="also torch.compile (minutes)")
    parser.add_argument("--compile-only", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    # A compiled backward gives its saved tensors away unless told that it will run again.
    torch._functorch.config.donated_buffer = False
    layers = args.layer or LAYERS
    if args.compile_only:
        for layer in layers:
            for row in run_gradus(args, layer)["rows"]:
                compile_row(row)
        return
    if args.compile:
        compile_in_parallel(args, layers)
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    print(f"{'':54}{'gradus ms':>10}{'% copy':>8}{'PyTorch ms':>11}{'ratio':>7}")
    rows, copies = [], []
    for layer in layers:
        measured = run_gradus(args, layer)
        copies.append(measured["copy_gb_per_s"])
        for row in measured["rows"]:
            times = rival(row, args.compile)
            name = f"{layer} {row['case']} {row['shape']} {row['dtype']}"
            name += " cold" if row["cold"] else " warm"
            for side, key in enumerate(("forward", "backward")):
                if not times[side] or key not in row:
                    continue
                mode = min(times[side], key=times[side].get)
                ms = times[side][mode]
                row[key].update({"torch_ms": ms, "torch_mode": mode, "ratio": ms / row[key]["ms"],
                                 "eager_ms": times[side]["eager"]})
                print(f"{name if side == 0 else '    backward':54}{row[key]['ms']:10.4f}"
                      f"{100 * row[key]['share']:8.1f}{ms:11.4f}{ms / row[key]['ms']:7.2f} {mode}",
                      flush=True)
            rows.append(row)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            properties = torch.cuda.get_device_properties(0)
            json.dump({"device": properties.name, "torch": torch.__version__,
                       "cuda_of_torch": torch.version.cuda, "gradus": measured["device"],
                       "cache_bytes": properties.L2_cache_size,
                       "copy_gb_per_s": [min(copies), max(copies)], "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
