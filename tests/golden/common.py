"""What the scripts of the golden values share: inputs, and one case as JSON."""
import random

import torch

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
