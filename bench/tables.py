#!/usr/bin/env python3
"""The tables of bench/results from what torch_layers.py and torch_conv.py have measured.

    python3 bench/tables.py [--layers LAYERS.json] [--conv CONV.json]... > TABLES.md

Prints Markdown; last, as a list, what misses an aim, by the rules stated above each table.
"""
import argparse
import json
import math
import re

DIRECTIONS = ["forward", "forward_bias", "dgrad", "wgrad"]

# Shares of a copy's speed to reach with large tensors, forward and backward, in percent.
AIMS = {"batch_norm train": (95, 93), "batch_norm eval": (97, 93), "group_norm": (90, 85),
        "instance_norm": (97, 95), "layer_norm rows": (97, 92), "rms_norm rows": (97, 92),
        "local_response_norm": (90, 85), "softmax channels": (92, 95), "softmax rows": (92, 95),
        "relu": (97, 97), "gelu_tanh": (97, 97), "silu": (97, 97), "max_pool2d": (93, 88),
        "avg_pool2d": (93, 88), "sum_dim023": (92,)}
REDUCTION_AIM = (93, 97)
LAUNCH_US = 3
SECOND_LAUNCH_US = 2

LARGE = """ms, forward / backward; share of a copy's speed in percent at the fewest bytes (each
operand once; BatchNorm in training 3Eb / 5Eb, ReLU 2Eb and a bit per element each way); the
share that is aimed at; the better of PyTorch's eager mode and torch.compile; its time over that
of gradus, at least 1 where PyTorch is below 95 % of a copy, else 0.98."""
SMALL = """us, forward / backward. Cold: operands not in the cache; the aim is the fewest bytes
at a copy's speed (5Eb for BatchNorm's backward in training where x and dy do not fit the cache)
plus 3 us, plus 5 where a second launch adds sums up. Warm: the same operands again and again;
the ratio, PyTorch's time over that of gradus, is to be 1 at least, and 2 over the eager mode
where that takes more than twice the fewest bytes at a copy's speed."""
CONV = """us, forward / with bias / gradient of x / of the weights; cuDNN through PyTorch with
cudnn.benchmark, the better of NCHW and NHWC; its time over that of gradus, 0.75 at least.
Names: images, channels, map, kernel, s stride, g groups."""


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def name_of(row):
    case = re.sub("_(large|small)", "", row["case"]).removesuffix("_nchw").replace("k2", "")
    if row["layer"] in ("activation", "sum", "reduce"):
        return case
    return f"{row['layer']} {case}".removesuffix("nchw").strip()


def sides_of(row):
    """forward and backward, without a backward that is a view."""
    return [row[key] for key in ("forward", "backward")
            if key in row and not (key == "backward" and row["case"].startswith("sum_"))]


def joined(values, form):
    return " / ".join(format(value, form) for value in values)


def large_line(row, missed):
    name, sides = name_of(row), sides_of(row)
    aims = AIMS.get(name, REDUCTION_AIM)
    for side, aim, direction in zip(sides, aims, ("forward", "backward")):
        share, ratio = 100 * side["share"], side["ratio"]
        least = 1 if share * side["ms"] / side["torch_ms"] < 95 else 0.98
        if share < aim:
            missed.append(f"{name} {row['dtype']} {direction}: {share:.1f} % of {aim}")
        if ratio < least:
            missed.append(f"{name} {row['dtype']} {direction}: {ratio:.3f} times PyTorch")
    return [name, row["dtype"], joined((s["ms"] for s in sides), ".3f"),
            joined((100 * s["share"] for s in sides), ".1f"), joined(aims, "g"),
            " / ".join(f"{s['torch_ms']:.3f} {s['torch_mode']}" for s in sides),
            joined((s["ratio"] for s in sides), ".2f")]


def small_aims(row, cache):
    training = name_of(row) == "batch_norm train"
    aims = []
    for index, side in enumerate(sides_of(row)):
        passes = 5 / 3 if training and index == 1 and side["bytes"] * 2 / 3 > cache else 1
        copy = side["gb_per_s"] / side["share"]
        sums = training or (index == 1 and row["layer"].endswith("_norm")
                            and row["layer"] != "local_response_norm")
        aims.append(side["bytes"] * passes / copy / 1e3 + LAUNCH_US + SECOND_LAUNCH_US * sums)
    return aims


def small_line(cold, warm, cache, missed):
    name, sides, again = name_of(cold), sides_of(cold), sides_of(warm)
    aims = small_aims(cold, cache)
    for side, other, aim, direction in zip(sides, again, aims, ("forward", "backward")):
        if round(1e3 * side["ms"], 1) > round(aim, 1):
            missed.append(f"{name} {cold['dtype']} {direction}, small and cold: "
                          f"{1e3 * side['ms']:.1f} us of {aim:.1f}")
        if other["ratio"] < 1:
            missed.append(f"{name} {cold['dtype']} {direction}, small and warm: "
                          f"{other['ratio']:.2f} times PyTorch")
        floor = side["ms"] * side["share"]
        if other["eager_ms"] > 2 * floor and other["eager_ms"] < 2 * other["ms"]:
            missed.append(f"{name} {cold['dtype']} {direction}, small and warm: "
                          f"{other['eager_ms'] / other['ms']:.2f} times PyTorch's eager mode")
    return [name, cold["dtype"], joined((1e3 * s["ms"] for s in sides), ".1f"), joined(aims, ".1f"),
            joined((1e3 * s["torch_ms"] for s in sides), ".1f"),
            joined((1e3 * s["ms"] for s in again), ".1f"),
            joined((1e3 * s["torch_ms"] for s in again), ".1f"),
            joined((s["ratio"] for s in again), ".2f")]


def print_table(head, lines):
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for line in lines:
        print("| " + " | ".join(line) + " |")
    print()


def print_layers(measured, missed):
    rows = sorted(measured["rows"], key=lambda row: row["dtype"] != "f32")  # else as they come
    print("## Large tensors, cold\n\n" + LARGE + "\n")
    print_table(["layer", "dtype", "gradus", "share", "aim", "PyTorch", "ratio"],
                [large_line(r, missed) for r in rows if "large" in r["case"] and r["cold"]])
    warm = {(name_of(r), r["dtype"]): r for r in rows if "small" in r["case"] and not r["cold"]}
    print("## Small tensors\n\n" + SMALL + "\n")
    print_table(["layer", "dtype", "cold", "aim", "PyTorch", "warm", "PyTorch", "ratio, warm"],
                [small_line(r, warm[name_of(r), r["dtype"]], measured["cache_bytes"], missed)
                 for r in rows if "small" in r["case"] and r["cold"]])


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def print_conv(rows, missed):
    print("## Convolutions\n\n" + CONV + "\n")
    for row in rows:
        for direction in DIRECTIONS:
            if row[direction]["ratio"] < 0.75:
                missed.append(f"{row['shape']} {row['dtype']} {direction}: "
                              f"{row[direction]['ratio']:.2f} times cuDNN")
            if not row[direction]["repeats"]:
                missed.append(f"{row['shape']} {row['dtype']} {direction}: does not repeat")
    print_table(["shape", "dtype", "gradus", "cuDNN", "ratio"],
                [[r["shape"], r["dtype"], joined((r[d]["us"] for d in DIRECTIONS), ".1f"),
                  joined((r[d]["torch_us"] for d in DIRECTIONS), ".1f"),
                  joined((r[d]["ratio"] for d in DIRECTIONS), ".2f")] for r in rows])
    lines = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        of_dtype = [r for r in rows if r["dtype"] == dtype]
        ratios = [[r[d]["ratio"] for r in of_dtype] for d in DIRECTIONS]
        every = sum(ratios, [])
        lines.append([dtype, *(f"{geometric_mean(v):.2f}" for v in [every, *ratios]),
                      f"{min(every):.2f}"])
    print_table(["dtype", "geometric mean", "forward", "with bias", "gradient of x",
                 "of the weights", "smallest"], lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers")
    parser.add_argument("--conv", action="append", default=[])
    args = parser.parse_args()
    missed = []
    if args.layers:
        print_layers(read(args.layers), missed)
    if args.conv:
        print_conv(sum((read(path)["rows"] for path in args.conv), []), missed)
    print("\n".join("- " + line for line in missed) or "No aim is missed.")


if __name__ == "__main__":
    main()
