#!/usr/bin/env python3
"""`gradus bench conv` and PyTorch (cuDNN) in one table of ratios, on one GPU.

    python3 bench/torch_conv.py --gradus build/gradus [--dtype bf16,tf32,f32] [--shape TEXT]
                                [--json FILE]

A ratio above 1 means that gradus is faster than the better of PyTorch's NCHW and NHWC, each with
the algorithm that cudnn.benchmark finds fastest. Both sides run 20 calls in one CUDA graph, on the
same operands each time. Needs PyTorch 2.4 or later with CUDA.
"""
import argparse
import json
import math
import subprocess
import tempfile

import torch

from torch_layers import graph_time

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32,
          "f32": torch.float32, "f64": torch.float64}
DIRECTIONS = ["forward", "forward_bias", "dgrad", "wgrad"]


def run_gradus(args):
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/rows.json"
        subprocess.run([args.gradus, "bench", "conv", "--device", "cuda", "--dtype", args.dtype,
                        "--shape", args.shape, "--json", path],
                       check=True, stdout=subprocess.DEVNULL)
        with open(path, encoding="utf-8") as file:
            return json.load(file)["rows"]


def calls(row, layout):
    """The four directions of one convolution."""
    options = {"device": "cuda", "dtype": DTYPES[row["dtype"]]}
    kernel, side, groups = row["kernel"], row["side"], row["groups"]
    x = torch.randn(row["n"], row["c"], side, side, **options).to(memory_format=layout)
    w = torch.randn(row["k"], row["c"] // groups, kernel, kernel, **options)
    w = w.to(memory_format=layout)
    bias = torch.randn(row["k"], **options)
    where = [row["stride"]] * 2, [kernel // 2] * 2, [1] * 2

    def forward(b):
        return torch.conv2d(x, w, b, *where, groups)

    dy = torch.randn_like(forward(None))

    def backward(*mask):
        return torch.ops.aten.convolution_backward(dy, x, w, None, *where, False, [0, 0], groups,
                                                   mask)

    return {"forward": lambda: forward(None), "forward_bias": lambda: forward(bias),
            "dgrad": lambda: backward(True, False, False),
            "wgrad": lambda: backward(False, True, False)}


def rival(row):
    """For each direction the fewer us of both layouts, and which it was."""
    torch.backends.cudnn.allow_tf32 = row["dtype"] == "tf32"
    best = {}
    for name, layout in (("NCHW", torch.contiguous_format), ("NHWC", torch.channels_last)):
        for direction, call in calls(row, layout).items():
            us = 1e3 * graph_time([call])
            best[direction] = min(best.get(direction, (us, name)), (us, name))
    return best


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def compare(row):
    """Prints one row and adds PyTorch's times to it."""
    line = f"{row['shape']:26} {row['dtype']:5}"
    for direction, (us, layout) in rival(row).items():
        ours = row[direction]
        ours.update({"torch_us": us, "torch_layout": layout, "ratio": us / ours["us"]})
        line += (f" |{ours['us']:8.1f}{ours['tflop_per_s']:7.1f}{100 * ours['share']:5.0f}"
                 f"{us:8.1f} {layout}{ours['ratio']:6.2f}")
    print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gradus", required=True)
    parser.add_argument("--dtype", default="bf16,tf32,f32")
    parser.add_argument("--shape", default="", help="only shapes whose name has this in it")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__, "cuDNN",
          torch.backends.cudnn.version())
    print("gradus us, TFLOP/s, % of its roof, PyTorch us, its layout, ratio")
    print(" " * 32 + "".join(f" |{name:>39}" for name in DIRECTIONS))
    rows = run_gradus(args)
    for row in rows:
        compare(row)
    for dtype in args.dtype.split(","):
        ratios = {name: [row[name]["ratio"] for row in rows if row["dtype"] == dtype]
                  for name in DIRECTIONS}
        together = [ratio for name in DIRECTIONS for ratio in ratios[name]]
        print(f"{dtype}: geometric mean {geometric_mean(together):.2f}, smallest "
              f"{min(together):.2f};", ", ".join(f"{name} {geometric_mean(ratios[name]):.2f}"
                                                 for name in DIRECTIONS))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__,
                       "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
