"""Golden values of the reductions, losses and optimizers."""
import torch
import torch.nn.functional as F

from common import Source, case, dump


def prod(x, dim, keepdim):
    for axis in sorted(dim, key=lambda a: a % x.dim(), reverse=True):
        x = x.prod(axis, keepdim)
    return x


def reductions():
    source = Source(21)
    cases = []
    shapes = [((3, 4), [0], False), ((2, 3, 4), [-1], True), ((2, 3, 2, 3), [0, 2, 3], False),
              ((2, 3, 2, 2), [1, 3], True), ((2, 3), [0, 1], False)]
    ops = [
        ("max", {}, torch.amax),
        ("min", {}, torch.amin),
        ("prod", {}, prod),
        ("norm2", {}, lambda x, dim, keepdim: torch.linalg.vector_norm(x, 2, dim, keepdim)),
        ("logsumexp", {}, torch.logsumexp),
    ]
    for correction in (0, 1, 2):
        given = {"correction": correction}
        ops += [("var", given, lambda x, dim, keepdim, c=correction: torch.var(
                    x, dim=dim, correction=c, keepdim=keepdim)),
                ("std", given, lambda x, dim, keepdim, c=correction: torch.std(
                    x, dim=dim, correction=c, keepdim=keepdim))]
    for name, given, op in ops:
        for shape, axes, keepdim in shapes if not given.get("correction") else shapes[:3]:
            cases.append(case(name, source, {**given, "axes": axes, "keepdim": keepdim},
                              {"x": source.tensor(*shape)}, lambda x: op(x, axes, keepdim)))
    # Ties share the gradient equally; zeros do not spoil the gradient of a product.
    few = torch.tensor([source.random.choice([-1.0, 0.0, 1.0]) for _ in range(24)])
    for name, _, op in ops[:3]:
        cases.append(case(name, source, {"axes": [1], "keepdim": False},
                          {"x": few.reshape(4, 6)}, lambda x: op(x, [1], False)))
    return cases


def losses():
    source = Source(22)
    cases = []
    for reduction in ("none", "mean", "sum"):
        for name, args, run in [
            ("mse", {}, F.mse_loss),
            ("l1", {}, F.l1_loss),
            ("smooth_l1", {"beta": 1.0}, F.smooth_l1_loss),
            ("smooth_l1", {"beta": 0.4}, F.smooth_l1_loss),
        ]:
            t = source.tensor(3, 4)
            cases.append(case(name, source, {**args, "reduction": reduction},
                              {"x": source.tensor(3, 4)},
                              lambda x, t: run(x, t, reduction=reduction, **args), {"t": t}))
        for weight, pos_weight in [(None, None), ((4,), None), (None, (4,)), ((3, 4), (3, 4))]:
            constants = {"t": source.tensor(3, 4, low=0.0, high=1.0)}
            if weight:
                constants["weight"] = source.tensor(*weight, low=0.25, high=2.0)
            if pos_weight:
                constants["pos_weight"] = source.tensor(*pos_weight, low=0.25, high=3.0)
            cases.append(case(
                "bce_with_logits", source, {"reduction": reduction},
                {"x": source.tensor(3, 4, low=-4.0, high=4.0)},
                lambda x, t, weight=None, pos_weight=None: F.binary_cross_entropy_with_logits(
                    x, t, weight, reduction=reduction, pos_weight=pos_weight), constants))
        for shape, ignored, weighted in [((5, 4), False, False), ((5, 4), True, True),
                                         ((2, 3, 2, 3), True, False)]:
            positions = (shape[0], *shape[2:])
            labels = source.labels(torch.Size(positions).numel(), shape[1]).reshape(positions)
            args = {"reduction": reduction, "ignore_index": 2 if ignored else -100}
            weight = source.tensor(shape[1], low=0.25, high=2.0) if weighted else None
            record = case("nll", source, args, {"x": source.tensor(*shape)},
                          lambda x: F.nll_loss(x, labels, weight, **args))
            record["inputs"]["labels"] = dump(labels)
            if weighted:
                record["inputs"]["weight"] = dump(weight)
            cases.append(record)
    return cases


def cross_entropy_pixels():
    """A label per pixel."""
    source = Source(24)
    cases = []
    for shape, reduction, smoothing, ignored, weighted in [
        ((2, 4, 3), "none", 0.1, -100, True),
        ((2, 3, 2, 4), "mean", 0.0, 1, True),
        ((1, 5, 2, 3), "mean", 0.2, 2, False),
        ((2, 3, 2, 2), "sum", 0.1, -100, True),
    ]:
        positions = (shape[0], *shape[2:])
        labels = source.labels(torch.Size(positions).numel(), shape[1]).reshape(positions)
        weight = source.tensor(shape[1], low=0.25, high=2.0) if weighted else None
        args = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": ignored}
        record = case("pixels", source, args, {"x": source.tensor(*shape)},
                      lambda x: F.cross_entropy(x, labels, weight, **args))
        record["inputs"]["labels"] = dump(labels)
        if weighted:
            record["inputs"]["weight"] = dump(weight)
        cases.append(record)
    return cases


def clip_grad():
    """Gradients of three parameters before and after clipping."""
    source = Source(25)
    cases = []
    for name, limit, norm_type in [("norm", 2.5, 2.0), ("norm", 100.0, 2.0), ("norm", 3.0, 1.0),
                                   ("norm", 0.5, float("inf")), ("value", 0.75, None)]:
        parameters = [torch.zeros(shape, requires_grad=True) for shape in ((3, 2), (4,), (1,))]
        for parameter in parameters:
            parameter.grad = source.tensor(*parameter.shape)
        record = {"name": name, "limit": limit, "norm_type": str(norm_type),
                  "before": [dump(parameter.grad) for parameter in parameters]}
        if name == "norm":
            norm = torch.nn.utils.clip_grad_norm_(parameters, limit, norm_type)
            record["norm"] = norm.item()
        else:
            torch.nn.utils.clip_grad_value_(parameters, limit)
        record["after"] = [dump(parameter.grad) for parameter in parameters]
        cases.append(record)
    return cases


class Muon(torch.optim.Optimizer):
    """The algorithm in the documentation of torch.optim.Muon, which this PyTorch has not."""

    def __init__(self, params, lr, weight_decay, momentum, nesterov, adjust):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum,
                                      nesterov=nesterov, adjust=adjust))

    @staticmethod
    def orthogonalized(update):
        x = update.t() if update.shape[0] > update.shape[1] else update
        x = x / x.norm().clamp(min=1e-7)
        for _ in range(5):
            gram = x @ x.t()
            x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
        return x.t() if update.shape[0] > update.shape[1] else x

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for w in group["params"]:
                buffer = self.state[w].setdefault("buffer", torch.zeros_like(w))
                buffer.mul_(group["momentum"]).add_(w.grad)
                update = buffer
                if group["nesterov"]:
                    update = w.grad + group["momentum"] * buffer
                rows, columns = w.shape
                scale = max(1, rows / columns) ** 0.5
                if group["adjust"] == "match_rms_adamw":
                    scale = 0.2 * max(rows, columns) ** 0.5
                w.mul_(1 - group["lr"] * group["weight_decay"])
                w.add_(self.orthogonalized(update), alpha=-group["lr"] * scale)


def optimizers():
    """Weights after each of four steps from given gradients."""
    source = Source(23)
    cases = []
    optim = torch.optim
    for name, build, shape, args in [
        ("adam", optim.Adam, (4,), {}),
        ("adam", optim.Adam, (3,), {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
        ("adamw", optim.AdamW, (4,), {"weight_decay": 0.0}),
        ("adamw", optim.AdamW, (3,), {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
        ("muon", Muon, (3, 4), {"weight_decay": 0.1, "momentum": 0.95, "nesterov": True,
                                "adjust": "original"}),
        ("muon", Muon, (5, 2), {"weight_decay": 0.0, "momentum": 0.8, "nesterov": False,
                                "adjust": "original"}),
        ("muon", Muon, (5, 2), {"weight_decay": 0.1, "momentum": 0.9, "nesterov": True,
                                "adjust": "match_rms_adamw"}),
    ]:
        w = source.tensor(*shape).requires_grad_(True)
        optimizer = build([w], lr=1.0, **args)
        record = {"name": name, "args": args, "initial": dump(w), "steps": []}
        for lr in (0.1, 0.2, 0.05, 0.0):
            optimizer.param_groups[0]["lr"] = lr
            w.grad = source.tensor(*shape)
            optimizer.step()
            record["steps"].append({"lr": lr, "gradient": dump(w.grad), "w": dump(w)})
        cases.append(record)
    return cases


FILES = [reductions, losses, optimizers, cross_entropy_pixels, clip_grad]
