#!/usr/bin/python3
"""Writes the golden values of tests/golden/*.json with PyTorch in f64.

    /usr/bin/python3 tests/golden/make_golden.py [NAME...]

Each file holds a list of cases: name, args (plain numbers), inputs, dy, outputs and gradients;
every tensor is {"shape": [...], "data": [...]}, row-major and in full precision. Inputs come from
Python's own generator with three decimals, so that the files stay small and do not depend on the
version of PyTorch.
"""
import json
import pathlib
import sys

import torch
import torch.nn.functional as F

import layers
import objectives
from common import Source, case, dump

HERE = pathlib.Path(__file__).resolve().parent


def batch_norm():
    source = Source(1)
    cases = []
    for name, shape, momentum, affine in [
        ("two_axes", (6, 3), 0.1, True),
        ("images", (2, 3, 2, 3), 0.1, True),
        ("images_cumulative", (2, 2, 3, 2), None, True),
        ("no_affine", (3, 2, 2, 2), 0.3, False),
    ]:
        channels = shape[1]
        x = source.tensor(*shape) + torch.arange(channels).reshape(-1, *[1] * (len(shape) - 2))
        inputs = {"x": x}
        if affine:
            inputs["gamma"] = source.tensor(channels, low=0.5, high=2.0)
            inputs["beta"] = source.tensor(channels)
        eps = 1e-5 if affine else 0.25
        kind = torch.nn.BatchNorm1d if len(shape) == 2 else torch.nn.BatchNorm2d
        layer = kind(channels, eps=eps, momentum=momentum, affine=False)
        layer.running_mean.copy_(source.tensor(channels))
        layer.running_var.copy_(source.tensor(channels, low=0.5, high=2.0))
        before = {"running_mean": layer.running_mean.clone(),
                  "running_var": layer.running_var.clone()}
        args = {"eps": eps, "momentum": momentum}

        def train(x, gamma=None, beta=None):
            layer.train()
            shaped = [1, channels] + [1] * (len(shape) - 2)
            y = layer(x)
            return y if gamma is None else y * gamma.reshape(shaped) + beta.reshape(shaped)

        def evaluate(x, gamma=None, beta=None, running_mean=None, running_var=None):
            return F.batch_norm(x, running_mean, running_var, gamma, beta, False, 0.0, eps)

        cases.append(case(name + "_eval", source, args, inputs, evaluate, before))
        record = case(name + "_train", source, args, inputs, train)
        record["inputs"].update({key: dump(value) for key, value in before.items()})
        record["outputs"]["running_mean"] = dump(layer.running_mean)
        record["outputs"]["running_var"] = dump(layer.running_var)
        # A second batch, for the counter: momentum none is the average over both.
        second = source.tensor(*shape)
        layer(second)
        record["inputs"]["second_x"] = dump(second)
        record["outputs"]["second_running_mean"] = dump(layer.running_mean)
        record["outputs"]["second_running_var"] = dump(layer.running_var)
        cases.append(record)
    return cases


def conv2d():
    source = Source(2)
    cases = []
    # name, x, w, stride, padding, dilation, groups, bias; h and w differ wherever they can
    for name, x, w, stride, padding, dilation, groups, bias in [
        ("plain", (2, 3, 4, 5), (4, 3, 3, 2), (1, 1), (0, 0), (1, 1), 1, False),
        ("same", (1, 2, 4, 3), (3, 2, 3, 3), (1, 1), (1, 1), (1, 1), 1, True),
        ("stride", (2, 2, 6, 5), (3, 2, 3, 3), (2, 1), (1, 2), (1, 1), 1, True),
        ("uncovered_columns", (1, 1, 6, 6), (2, 1, 3, 3), (2, 2), (0, 0), (1, 1), 1, False),
        ("dilation", (1, 2, 6, 7), (2, 2, 3, 2), (1, 1), (2, 1), (1, 3), 1, True),
        ("groups", (2, 4, 3, 7), (6, 2, 2, 3), (1, 3), (0, 1), (1, 1), 2, True),
        ("depthwise", (1, 3, 5, 4), (6, 1, 3, 3), (2, 1), (1, 1), (1, 1), 3, False),
        ("pointwise", (2, 3, 2, 3), (4, 3, 1, 1), (1, 1), (0, 0), (1, 1), 1, True),
        ("gaps_and_wide_padding", (1, 4, 5, 6), (4, 2, 2, 1), (3, 2), (3, 2), (2, 1), 2, True),
    ]:
        inputs = {"x": source.tensor(*x), "w": source.tensor(*w)}
        if bias:
            inputs["b"] = source.tensor(w[0])
        args = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        cases.append(case(name, source, args, inputs,
                          lambda x, w, b=None: F.conv2d(x, w, b, **args)))
    return cases


def linear():
    source = Source(3)
    cases = []
    for name, x, out_features, bias in [
        ("rows", (3, 5), 4, True),
        ("no_bias", (2, 3), 5, False),
        ("leading_axes", (2, 3, 4), 2, True),
    ]:
        inputs = {"x": source.tensor(*x), "w": source.tensor(out_features, x[-1])}
        if bias:
            inputs["b"] = source.tensor(out_features)
        cases.append(case("linear_" + name, source, {}, inputs,
                          lambda x, w, b=None: F.linear(x, w, b)))
    for name, a, b in [
        ("plain", (3, 4), (4, 2)),
        ("batched", (2, 3, 4), (2, 4, 2)),
        ("broadcast_batch", (2, 1, 2, 3), (3, 3, 2)),
    ]:
        inputs = {"a": source.tensor(*a), "b": source.tensor(*b)}
        cases.append(case("matmul_" + name, source, {}, inputs,
                          lambda a, b: torch.matmul(a, b)))
    return cases


def max_pool2d():
    source = Source(4)
    cases = []
    for name, x, kernel, stride, padding, dilation, ceil_mode in [
        ("two_by_two", (2, 2, 4, 6), (2, 2), (2, 2), (0, 0), (1, 1), False),
        ("overlapping", (1, 2, 5, 6), (3, 2), (2, 1), (1, 0), (1, 1), False),
        ("dilated", (1, 2, 6, 7), (2, 3), (1, 2), (1, 1), (2, 1), False),
        ("floor", (1, 1, 5, 7), (2, 3), (2, 3), (0, 0), (1, 1), False),
        ("ceil", (1, 1, 5, 7), (2, 3), (2, 3), (0, 0), (1, 1), True),
        ("ceil_padding", (1, 2, 6, 5), (3, 3), (2, 3), (1, 1), (1, 1), True),
        ("ceil_window_in_padding_dropped", (1, 1, 5, 5), (3, 3), (3, 3), (1, 1), (1, 1), True),
        ("gaps", (1, 1, 7, 8), (2, 2), (3, 4), (0, 1), (1, 1), False),
    ]:
        inputs = {"x": source.distinct(*x)}
        args = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation,
                "ceil_mode": ceil_mode}
        cases.append(case(name, source, args, inputs, lambda x: F.max_pool2d(
            x, kernel, stride, padding, dilation, ceil_mode)))
    ties = torch.tensor([source.random.choice([-1.0, 0.0, 1.0]) for _ in range(36)])
    args = {"kernel": (3, 2), "stride": (1, 2), "padding": (1, 1), "dilation": (1, 1),
            "ceil_mode": False}
    cases.append(case("ties", source, args, {"x": ties.reshape(1, 1, 6, 6)},
                      lambda x: F.max_pool2d(x, (3, 2), (1, 2), (1, 1))))
    return cases


def cross_entropy():
    source = Source(5)
    cases = []
    for reduction in ("mean", "sum", "none"):
        for name, smoothing, ignored, weighted in [
            ("plain", 0.0, False, False),
            ("smoothed", 0.1, False, False),
            ("ignored", 0.0, True, False),
            ("weighted", 0.0, False, True),
            ("everything", 0.2, True, True),
        ]:
            labels = source.labels(5, 4)
            args = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": -100}
            if ignored:
                args["ignore_index"] = 2
                labels[1] = labels[3] = 2
            weight = source.tensor(4, low=0.25, high=2.0) if weighted else None
            record = case(f"{reduction}_{name}", source, args, {"logits": source.tensor(5, 4)},
                          lambda logits: F.cross_entropy(logits, labels, weight, **args))
            record["inputs"]["labels"] = dump(labels)
            if weighted:
                record["inputs"]["weight"] = dump(weight)
            cases.append(record)
    return cases


def reduce():
    source = Source(6)
    cases = []
    for op in (torch.sum, torch.mean):
        for shape, axes, keepdim in [
            ((3, 4), [0], False),
            ((2, 3, 4), [-1], True),
            ((2, 3, 2, 3), [0, 2, 3], False),
            ((2, 3, 2, 3), [1, 3], True),
            ((2, 3), [], False),
        ]:
            axes = axes or list(range(len(shape)))
            args = {"axes": axes, "keepdim": keepdim}
            cases.append(case(op.__name__, source, args, {"x": source.tensor(*shape)},
                              lambda x: op(x, dim=axes, keepdim=keepdim)))
    return cases


def sgd():
    """Weights after each of four steps from given gradients."""
    source = Source(7)
    cases = []
    for momentum, nesterov, weight_decay in [
        (0.0, False, 0.0), (0.9, False, 0.0), (0.9, True, 0.0), (0.8, True, 0.05),
        (0.0, False, 0.1),
    ]:
        args = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        w = source.tensor(3).requires_grad_(True)
        optimizer = torch.optim.SGD([w], lr=1.0, **args)
        record = {"args": args, "initial": dump(w), "steps": []}
        for lr in (0.1, 0.2, 0.05, 0.0):
            optimizer.param_groups[0]["lr"] = lr
            w.grad = source.tensor(3)
            optimizer.step()
            record["steps"].append({"lr": lr, "gradient": dump(w.grad), "w": dump(w)})
        cases.append(record)
    return cases


def schedules():
    """Learning rates of 12 steps from 0.5."""
    steps = 12
    cases = []
    for name, args, build in [
        ("cosine", {"steps": steps},
         lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, steps)),
        ("step", {"every": 5, "factor": 0.3},
         lambda o: torch.optim.lr_scheduler.StepLR(o, 5, 0.3)),
        # 0 up to the peak at 1/4 of the steps, then down to 0
        ("one_cycle", {"steps": steps, "up": 0.25},
         lambda o: torch.optim.lr_scheduler.LambdaLR(
             o, lambda t: min(t / (steps * 0.25), (steps - t) / (steps * 0.75)))),
    ]:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
        scheduler = build(optimizer)
        rates = []
        for _ in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        cases.append({"name": name, "lr": 0.5, "args": args, "rates": rates})
    return cases


def tiny_cnn():
    """Ten training steps; initial and final have the keys of the Sequential's state_dict."""
    source = Source(8)
    nn = torch.nn
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, 10))
    for name, value in net.state_dict().items():
        if name in ("1.weight", "4.weight"):
            value.copy_(source.tensor(*value.shape, low=0.5, high=1.5))
        elif value.is_floating_point() and "running" not in name:
            bound = 1 / (value[0].numel() if value.dim() > 1 else 36) ** 0.5
            value.copy_(source.tensor(*value.shape, low=-bound, high=bound))
    args = {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0, **args)
    record = {"architecture": [str(layer) for layer in net], "args": args,
              "initial": {key: dump(value) for key, value in net.state_dict().items()},
              "steps": []}
    for lr in (0.0, 0.025, 0.05, 0.04375, 0.0375, 0.03125, 0.025, 0.01875, 0.0125, 0.00625):
        x, labels = source.tensor(8, 1, 8, 8), source.labels(8, 10)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        record["steps"].append(
            {"lr": lr, "x": dump(x), "labels": dump(labels), "loss": loss.item()})
    record["final"] = {key: dump(value) for key, value in net.state_dict().items()}
    return [record]


FILES = [batch_norm, conv2d, linear, max_pool2d, cross_entropy, reduce, sgd, schedules, tiny_cnn,
         *layers.FILES, *objectives.FILES]


def main():
    for make in FILES:
        if sys.argv[1:] and make.__name__ not in sys.argv[1:]:
            continue
        content = {"torch": torch.__version__, "cases": make()}
        path = HERE / (make.__name__ + ".json")
        path.write_text(json.dumps(content, separators=(",", ":")) + "\n")
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
