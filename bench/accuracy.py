#!/usr/bin/env python3
"""Test accuracy of small_cnn on Fashion-MNIST with each norm: gradus and PyTorch, on one GPU.

    python3 bench/accuracy.py --gradus build/gradus --data DIR [--norm NAME]... [--seeds 3]
                              [--epochs 8] [--commit HASH] [--write docs/accuracy.md]

Both train the same net on the same schedule: batches of 128, SGD with Nesterov momentum 0.9
and weight decay 5e-4, in every step the rate of one_cycle (nn/optim/schedule.h): linear up to 0.1 over
the first fifth of the steps and down to 0; TF32.
DIR holds the four files train-images-idx3-ubyte.gz and so on. Needs PyTorch 2.4 or later with CUDA.
"""
import argparse
import datetime
import gzip
import json
import math
import statistics
import subprocess
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 128
NORMS = ["batch", "group", "layer", "instance", "rms", "lrn", "none"]


def norm_layer(norm, channels, size):
    return {"batch": lambda: nn.BatchNorm2d(channels),
            "group": lambda: nn.GroupNorm(math.gcd(channels, 8), channels),
            "layer": lambda: nn.LayerNorm([channels, size, size]),
            "instance": lambda: nn.InstanceNorm2d(channels, affine=True),
            "rms": lambda: nn.RMSNorm([channels, size, size]),
            "lrn": lambda: nn.LocalResponseNorm(5)}[norm]()


def small_cnn(norm):
    def block(c, k, size):
        layers = [nn.Conv2d(c, k, 3, padding=1, bias=norm in ("none", "lrn", "rms"))]
        if norm != "none":
            layers.append(norm_layer(norm, k, size))
        return layers + [nn.ReLU()]

    return nn.Sequential(
        *block(1, 32, 28), *block(32, 32, 28), nn.MaxPool2d(2),
        *block(32, 64, 14), *block(64, 64, 14), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10)).cuda()


def read_idx(path):
    data = gzip.open(path).read()
    dims = [int.from_bytes(data[4 + 4 * i:8 + 4 * i], "big") for i in range(data[3])]
    return torch.tensor(np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(dims))


def read_set(folder, name):
    x = read_idx(f"{folder}/{name}-images-idx3-ubyte.gz").cuda().float() / 255
    y = read_idx(f"{folder}/{name}-labels-idx1-ubyte.gz").cuda().long()
    x = ((x - 0.2860) / 0.3530).unsqueeze(1)
    return x.to(memory_format=torch.channels_last), y


def captured_step(net, optimizer, x, y):
    def step():
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    state = {key: value.clone() for key, value in net.state_dict().items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    # As if nothing had been trained yet.
    net.load_state_dict(state)
    for buffers in optimizer.state.values():
        buffers["momentum_buffer"].zero_()
    return graph


def one_cycle(t, total, peak=0.1, up=0.2):
    """The rate of step t, counted from 0, as nn/optim/schedule.cpp gives it."""
    top = up * total
    return peak * min(1, (t + 1) / top) if t < top else peak * (1 - (t - top) / (total - top))


def torch_accuracy(norm, seed, epochs, train, test):
    torch.manual_seed(seed)
    net = small_cnn(norm).to(memory_format=torch.channels_last)
    (images, labels), steps = train, len(train[0]) // BATCH
    lr = torch.tensor(0.0, device="cuda")
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, nesterov=True,
                                weight_decay=5e-4, fused=True)
    x, y = images[:BATCH].clone(), labels[:BATCH].clone()
    graph = captured_step(net, optimizer, x, y)
    total = epochs * steps
    for t in range(total):
        if t % steps == 0:
            order = torch.randperm(len(images), device="cuda")
        lr.fill_(one_cycle(t, total))
        batch = order[t % steps * BATCH:(t % steps + 1) * BATCH]
        x.copy_(images[batch])
        y.copy_(labels[batch])
        graph.replay()
    net.eval()
    with torch.no_grad():
        right = sum((net(test[0][i:i + 1000]).argmax(1) == test[1][i:i + 1000]).sum().item()
                    for i in range(0, len(test[0]), 1000))
    return 100 * right / len(test[0])


def gradus_accuracy(program, norm, seed, epochs, data):
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/metrics.jsonl"
        subprocess.run([program, "train", "--device", "cuda", "--precision", "tf32", "--data", data,
                        "--norm", norm, "--seed", str(seed), "--epochs", str(epochs),
                        "--metrics", path], check=True, stdout=subprocess.DEVNULL)
        with open(path, encoding="utf-8") as file:
            return 100 * json.loads(file.read().splitlines()[-1])["test_accuracy"]


def table(rows, args):
    head = [
        "# Accuracy with each norm", "",
        f"Test accuracy in percent of small_cnn on Fashion-MNIST after {args.epochs} epochs, mean of "
        f"{args.seeds} seeds (each in",
        "brackets), written by `bench/accuracy.py`, which says how both sides train.", "",
        f"{torch.cuda.get_device_name()}, {datetime.date.today()}, gradus at {args.commit}, PyTorch "
        f"{torch.__version__}.", "",
        "| norm | gradus | PyTorch | difference |", "| --- | --- | --- | --- |"]
    for norm, (ours, theirs) in rows.items():
        texts = [f"{statistics.mean(side):.2f} ({', '.join(f'{v:.2f}' for v in side)})"
                 for side in (ours, theirs)]
        difference = statistics.mean(ours) - statistics.mean(theirs)
        head.append(f"| {norm} | {texts[0]} | {texts[1]} | {difference:+.2f} |")
    return "\n".join(head) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gradus", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--norm", action="append", choices=NORMS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--commit", default="an unnamed commit", help="of gradus, for the table")
    parser.add_argument("--write")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    train, test = read_set(args.data, "train"), read_set(args.data, "t10k")
    rows = {}
    for norm in args.norm or NORMS:
        seeds = range(1, args.seeds + 1)
        rows[norm] = ([gradus_accuracy(args.gradus, norm, s, args.epochs, args.data) for s in seeds],
                      [torch_accuracy(norm, s, args.epochs, train, test) for s in seeds])
        print(table({norm: rows[norm]}, args).splitlines()[-1], flush=True)
    if args.write:
        with open(args.write, "w", encoding="utf-8") as file:
            file.write(table(rows, args))


if __name__ == "__main__":
    main()
