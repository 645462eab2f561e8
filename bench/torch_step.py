#!/usr/bin/env python3
"""PyTorch's twin of `gradus bench step`: milliseconds per training step of small_cnn.

    python3 bench/torch_step.py --device cpu --threads 2
    python3 bench/torch_step.py --device cuda --precision tf32 --batch-size 128

Runs both memory formats (and on CUDA eager and graph), prints a line for each and the best last.
Needs PyTorch 1.13 or later, 2.3 on CUDA. Data are random and already on the device, as in gradus's own figure.
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def small_cnn():
    def block(c, k):
        return [nn.Conv2d(c, k, 3, padding=1, bias=False), nn.BatchNorm2d(k), nn.ReLU()]

    return nn.Sequential(
        *block(1, 32), *block(32, 32), nn.MaxPool2d(2),
        *block(32, 64), *block(64, 64), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))


def make_step(args, channels_last):
    torch.manual_seed(0)
    model = small_cnn().to(args.device)
    x = torch.randn(args.batch_size, 1, 28, 28, device=args.device)
    y = torch.randint(0, 10, (args.batch_size,), device=args.device)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    fused = {"fused": True} if args.device == "cuda" else {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True,
                                weight_decay=5e-4, **fused)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device, torch.bfloat16, enabled=args.precision == "bf16"):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def captured(step):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def median_ms(step, device, repeats):
    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    steps = 20 if device == "cuda" else 1  # as gradus: the wait counts once for all of them
    for _ in range(3):
        step()
    times = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        wait()
        times.append(1e3 * (time.perf_counter() - start) / steps)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--precision", default="f32", choices=["f32", "tf32", "bf16"])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = args.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = args.precision == "tf32"

    results = {}
    for channels_last in (False, True):
        layout = "NHWC" if channels_last else "NCHW"
        results[f"eager {layout}"] = median_ms(make_step(args, channels_last), args.device, args.repeats)
        if args.device == "cuda":
            step = captured(make_step(args, channels_last))
            results[f"graph {layout}"] = median_ms(step, args.device, args.repeats)
    best = min(results, key=results.get)
    name = torch.cuda.get_device_name() if args.device == "cuda" else f"{torch.get_num_threads()} threads"
    if args.json:
        print(json.dumps({"torch": torch.__version__, "device": name, "batch_size": args.batch_size,
                          "precision": args.precision, "ms_per_step": results, "best": best}))
        return
    print(f"torch {torch.__version__}, {name}, batch {args.batch_size}, {args.precision}")
    for mode, ms in results.items():
        print(f"  {mode:12s} {ms:8.3f} ms/step  {1e3 * args.batch_size / ms:10.0f} images/s")
    print(f"  best: {best}, {results[best]:.3f} ms/step")


if __name__ == "__main__":
    main()
