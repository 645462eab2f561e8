#!/usr/bin/python3
"""Writes the golden values of tests/golden/*.json with PyTorch in f64.

    /usr/bin/python3 tests/golden/make_golden.py [NAME...]

Each file holds a list of cases: name, args (plain numbers), inputs, dy, outputs and gradients, every
tensor as {"shape": [...], "data": [...]} in row-major order and full precision. Inputs come from
Python's own generator with three decimals, so that the files stay small and do not depend on the
version of PyTorch.
"""
import json
import pathlib
import random
import sys

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


class Source:
    """Reproducible inputs with three decimals."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def tensor(self, *shape, low=-2.0, high=2.0):
        count = int(torch.Size(shape).numel())
        values = [round(self.random.uniform(low, high), 3) for _ in range(count)]
        return torch.tensor(values).reshape(shape)

    def distinct(self, *shape):
        """No two values equal: no ties for max pooling."""
        count = int(torch.Size(shape).numel())
        values = list(range(count))
        self.random.shuffle(values)
        return torch.tensor([v / 8 - count / 16 for v in values]).reshape(shape)

    def labels(self, count, classes):
        return torch.tensor([self.random.randrange(classes) for _ in range(count)])


def dump(tensor):
    return {"shape": list(tensor.shape), "data": tensor.detach().reshape(-1).tolist()}


def case(name, source, args, inputs, run, constants=None):
    """Runs run(**inputs) -> y, backward from a random dy, and records everything."""
    leaves = {key: value.clone().requires_grad_(True) for key, value in inputs.items()}
    constants = constants or {}
    y = run(**leaves, **constants)
    dy = source.tensor(*y.shape)
    y.backward(dy)
    return {
        "name": name,
        "args": args,
        "inputs": {key: dump(value) for key, value in {**inputs, **constants}.items()},
        "dy": dump(dy),
        "outputs": {"y": dump(y)},
        "gradients": {key: dump(value.grad) for key, value in leaves.items()},
    }


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
        before = {"running_mean": layer.running_mean.clone(), "running_var": layer.running_var.clone()}
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


FILES = {"batch_norm": batch_norm}


def main():
    for name in sys.argv[1:] or FILES:
        content = {"torch": torch.__version__, "cases": FILES[name]()}
        path = HERE / (name + ".json")
        path.write_text(json.dumps(content, separators=(",", ":")) + "\n")
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
