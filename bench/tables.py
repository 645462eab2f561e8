#!/usr/bin/env python3
"""The tables of bench/results from what torch_layers.py, dram_bytes.py and torch_conv.py have measured.

    python3 bench/tables.py [--layers LAYERS.json]... [--dram DRAM.json] [--conv CONV.json]... > TABLES.md

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
GROUP_NORM_CHANNELS_LAST_AIM = 85
OF_NCHW = 0.9
MOST_DRAM = 1.1
# PyTorch's time over that of gradus, where more is to be had than the same speed.
LEAST_RATIOS = {"local_response_norm": 2.5, "group_norm": 1.4}
LAUNCH_US = 3
SECOND_LAUNCH_US = 2

LARGE = """ms, forward / backward; share of a copy's speed in percent at the fewest bytes (each
operand once; BatchNorm in training 3Eb / 5Eb, ReLU 2Eb and a bit per element each way); the
share that is aimed at; bytes that DRAM moved over the fewest, 1.1 at most; the better of
PyTorch's eager mode and torch.compile; its time over that of gradus, at least 1 where PyTorch is
below 95 % of a copy, else 0.98 (LocalResponseNorm 2.5, GroupNorm 1.4)."""
CHANNELS_LAST = """Columns as above; BatchNorm and MaxPool are to reach 0.9 of the share of NCHW,
GroupNorm 85 % of 3Eb / 5Eb; no ratio is aimed at."""
SMALL = """us, forward / backward. Cold: operands not in the cache; the aim is the fewest bytes
at a copy's speed (5Eb for BatchNorm's backward in training where x and dy do not fit the cache)
plus 3 us, or 5 where a second launch adds sums up. Warm: the same operands again and again;
the ratio, PyTorch's time over that of gradus, is to be 1 at least, and 2 over the eager mode
where that takes more than twice the fewest bytes at a copy's speed."""
CONV = """us, forward / with bias / gradient of x / of the weights; cuDNN through PyTorch with
cudnn.benchmark, the better of NCHW and NHWC; its time over that of gradus, 0.75 at least.
Names: images, channels, map, kernel, s stride, g groups."""


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def name_of(row):
    case = re.sub("_(large|small)", "", row["case"]).replace("_nhwc", "_channels_last")
    case = re.sub("_?(nchw|channels_last)$", "", case).replace("k2", "")
    if row["layer"] in ("activation", "sum", "reduce"):
        return case
    return f"{row['layer']} {case}".strip()


def is_channels_last(row):
    return re.search("nhwc|channels_last", row["case"]) is not None


def key_of(row):
    return name_of(row), row["dtype"], is_channels_last(row)


def sides_of(row):
    """forward and backward, without a backward that is a view."""
    return [row[key] for key in ("forward", "backward")
            if key in row and not (key == "backward" and row["case"].startswith("sum_"))]


def joined(values, form):
    return " / ".join(format(value, form) for value in values)


def large_cells(row, aims, dram, missed):
    """ms, share, aim, DRAM, PyTorch and ratio of a row; notes what misses."""
    sides, counted = sides_of(row), dram.get(key_of(row), [])
    title = name_of(row) + " channels-last" * is_channels_last(row)
    for side, aim, direction in zip(sides, aims, ("forward", "backward")):
        share, ratio = 100 * side["share"], side["ratio"]
        least = 1 if share * side["ms"] / side["torch_ms"] < 95 else 0.98
        least = 0 if is_channels_last(row) else max(least, LEAST_RATIOS.get(row["layer"], 0))
        if share < aim:
            missed.append(f"{title} {row['dtype']} {direction}: {share:.1f} % of {aim:.1f}")
        if ratio < least:
            missed.append(f"{title} {row['dtype']} {direction}: {ratio:.3f} times PyTorch")
    if any(over > MOST_DRAM for over in counted):
        missed.append(f"{title} {row['dtype']}: DRAM bytes {joined(counted, '.2f')} of the fewest")
    return [joined((s["ms"] for s in sides), ".3f"), joined((100 * s["share"] for s in sides), ".1f"),
            joined(aims, ".3g"), joined(counted, ".2f"),
            " / ".join(f"{s['torch_ms']:.3f} {s['torch_mode']}" for s in sides),
            joined((s["ratio"] for s in sides), ".2f")]


def channels_last_aims(row, nchw):
    same = nchw.get((name_of(row), row["dtype"]))
    if same and row["layer"] in ("batch_norm", "max_pool2d"):
        return [100 * OF_NCHW * side["share"] for side in sides_of(same)]
    return [GROUP_NORM_CHANNELS_LAST_AIM] * 2 if row["layer"] == "group_norm" else []


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
    over_eager = [other["eager_ms"] / other["ms"] for other in again]
    aims = small_aims(cold, cache)
    for side, other, aim, direction in zip(sides, again, aims, ("forward", "backward")):
        if round(1e3 * side["ms"], 1) > round(aim, 1):
            missed.append(f"{name} {cold['dtype']} {direction}, small and cold: "
                          f"{1e3 * side['ms']:.1f} us of {aim:.1f}")
        if other["ratio"] < 1:
            missed.append(f"{name} {cold['dtype']} {direction}, small and warm: "
                          f"{other['ratio']:.2f} times PyTorch")
        floor = side["ms"] * side["share"]
        if 2 * floor < other["eager_ms"] < 2 * other["ms"]:
            missed.append(f"{name} {cold['dtype']} {direction}, small and warm: "
                          f"{other['eager_ms'] / other['ms']:.2f} times PyTorch's eager mode, "
                          f"{other['eager_ms'] / floor:.2f} times the fewest bytes")
    return [name, cold["dtype"], joined((1e3 * s["ms"] for s in sides), ".1f"), joined(aims, ".1f"),
            joined((1e3 * s["torch_ms"] for s in sides), ".1f"),
            joined((1e3 * s["ms"] for s in again), ".1f"),
            joined((1e3 * s["torch_ms"] for s in again), ".1f"),
            joined((s["ratio"] for s in again), ".2f"), joined(over_eager, ".2f")]


def print_table(head, lines):
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for line in lines:
        print("| " + " | ".join(line) + " |")
    print()


def print_large(rows, dram, missed):
    head = ["layer", "dtype", "gradus", "share", "aim", "DRAM", "PyTorch", "ratio"]
    nchw = {key_of(r)[:2]: r for r in rows if not is_channels_last(r)}
    print("## Large tensors, cold\n\n" + LARGE + "\n")
    print_table(head, [[*key, *large_cells(row, AIMS.get(key[0], REDUCTION_AIM), dram, missed)]
                       for key, row in nchw.items()])
    print("## Channels-last, large and cold\n\n" + CHANNELS_LAST + "\n")
    print_table(head, [[name_of(r), r["dtype"],
                        *large_cells(r, channels_last_aims(r, nchw), dram, missed)]
                       for r in rows if is_channels_last(r)])


def print_small(rows, cache, missed):
    warm = {key_of(r): r for r in rows if not r["cold"]}
    print("## Small tensors\n\n" + SMALL + "\n")
    print_table(["layer", "dtype", "cold", "aim", "PyTorch", "warm", "PyTorch", "ratio, warm",
                 "eager over gradus"],
                [small_line(r, warm[key_of(r)], cache, missed) for r in rows if r["cold"]])


def print_layers(measured, counted, missed):
    rows = sum((m["rows"] for m in measured), [])
    rows.sort(key=lambda row: row["dtype"] != "f32")  # else as they come
    dram = {key_of(r): [side["dram_bytes"] / side["bytes"] for side in sides_of(r)
                        if "dram_bytes" in side]
            for r in counted if "large" in r["case"] and r["cold"]}
    print_large([r for r in rows if "large" in r["case"] and r["cold"]], dram, missed)
    print_small([r for r in rows if "small" in r["case"]], measured[0]["cache_bytes"], missed)


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
    parser.add_argument("--layers", action="append", default=[])
    parser.add_argument("--dram")
    parser.add_argument("--conv", action="append", default=[])
    args = parser.parse_args()
    if args.dram and not args.layers:
        parser.error("--dram needs --layers")
    if not args.layers and not args.conv:
        parser.error("expected --layers or --conv")
    missed = []
    if args.layers:
        counted = read(args.dram)["rows"] if args.dram else []
        print_layers([read(path) for path in args.layers], counted, missed)
    if args.conv:
        print_conv(sum((read(path)["rows"] for path in args.conv), []), missed)
    print("\n".join("- " + line for line in missed) or "No aim is missed.")


if __name__ == "__main__":
    main()
