"""Golden values of the normalizations, softmax, activations and average pooling."""
import torch
import torch.nn.functional as F

from common import Source, case, dump


def affine_inputs(source, x, parameters, affine):
    inputs = {"x": x}
    if affine:
        inputs["gamma"] = source.tensor(*parameters, low=0.5, high=2.0)
        inputs["beta"] = source.tensor(*parameters)
    return inputs


def group_norm():
    source = Source(11)
    cases = []
    for name, shape, groups, affine, eps in [
        ("rows", (3, 6), 2, True, 1e-5),
        ("images", (2, 6, 2, 3), 3, True, 1e-5),
        ("one_group", (2, 4, 5), 1, True, 0.25),
        ("every_channel", (2, 3, 2, 2), 3, True, 1e-5),
        ("no_affine", (2, 4, 1, 3, 2), 2, False, 1e-3),
    ]:
        inputs = affine_inputs(source, source.tensor(*shape), shape[1:2], affine)
        cases.append(case(name, source, {"groups": groups, "eps": eps}, inputs,
                          lambda x, gamma=None, beta=None: F.group_norm(
                              x, groups, gamma, beta, eps)))
    return cases


def instance_norm():
    """Each case with batch statistics and again with running ones; both are updated once."""
    source = Source(12)
    cases = []
    for name, shape, momentum, affine in [
        ("signals", (2, 3, 4), 0.1, True),
        ("images", (3, 2, 2, 3), 0.3, False),
        ("volumes", (2, 2, 2, 1, 3), 0.1, True),
    ]:
        channels = shape[1]
        inputs = affine_inputs(source, source.tensor(*shape), (channels,), affine)
        mean, var = source.tensor(channels), source.tensor(channels, low=0.5, high=2.0)
        before = {"running_mean": mean.clone(), "running_var": var.clone()}
        args = {"eps": 1e-5, "momentum": momentum}
        cases.append(case(name + "_eval", source, args, inputs,
                          lambda x, gamma=None, beta=None, running_mean=None, running_var=None:
                          F.instance_norm(x, running_mean, running_var, gamma, beta, False),
                          before))
        record = case(name + "_train", source, args, inputs,
                      lambda x, gamma=None, beta=None: F.instance_norm(
                          x, mean, var, gamma, beta, True, momentum))
        record["inputs"].update({key: dump(value) for key, value in before.items()})
        record["outputs"].update({"running_mean": dump(mean), "running_var": dump(var)})
        cases.append(record)
    return cases


def layer_norm():
    source = Source(13)
    cases = []
    for name, shape, axes, affine, eps in [
        ("rows", (4, 5), 1, True, 1e-5),
        ("leading_axes", (2, 3, 4), 1, True, 1e-5),
        ("two_axes", (3, 2, 4), 2, True, 0.25),
        ("all_axes", (2, 3, 2), 3, True, 1e-5),
        ("no_affine", (2, 2, 3), 2, False, 1e-5),
        ("one_axis", (7,), 1, True, 1e-5),
    ]:
        suffix = shape[len(shape) - axes:]
        inputs = affine_inputs(source, source.tensor(*shape), suffix, affine)
        cases.append(case(name, source, {"normalized_axes": axes, "eps": eps}, inputs,
                          lambda x, gamma=None, beta=None: F.layer_norm(
                              x, suffix, gamma, beta, eps)))
    return cases


def rms_norm():
    """By its formula: this PyTorch has no function of the name."""
    source = Source(14)
    cases = []
    for name, shape, axes, affine, eps in [
        ("rows", (4, 5), 1, True, 1e-5),
        ("two_axes", (2, 3, 4), 2, True, 0.25),
        ("all_axes", (2, 3, 2), 3, True, 1e-6),
        ("no_weight", (2, 3, 3), 1, False, 1e-5),
        ("one_axis", (7,), 1, True, 1e-5),
    ]:
        suffix = shape[len(shape) - axes:]
        inputs = {"x": source.tensor(*shape)}
        if affine:
            inputs["gamma"] = source.tensor(*suffix, low=0.5, high=2.0)

        def run(x, gamma=None):
            dims = list(range(x.dim() - axes, x.dim()))
            y = x / torch.sqrt(x.pow(2).mean(dims, keepdim=True) + eps)
            return y if gamma is None else y * gamma

        cases.append(case(name, source, {"normalized_axes": axes, "eps": eps}, inputs, run))
    return cases


def local_response_norm():
    source = Source(15)
    cases = []
    for name, shape, size, alpha, beta, k in [
        ("odd", (2, 5, 2, 3), 3, 1.5, 0.75, 1.0),
        ("even", (2, 6, 2), 4, 2.0, 0.5, 2.0),
        ("two", (1, 4, 3), 2, 0.5, 1.0, 1.0),
        ("one", (2, 3, 2), 1, 1.0, 0.75, 1.0),
        ("wide", (2, 3, 2), 7, 3.0, 0.75, 0.5),
        ("wide_even", (1, 2, 3), 6, 3.0, 1.25, 1.0),
        ("alexnet", (1, 8, 2, 2), 5, 1e-4, 0.75, 2.0),
    ]:
        args = {"size": size, "alpha": alpha, "beta": beta, "k": k}
        cases.append(case(name, source, args, {"x": source.tensor(*shape)},
                          lambda x: F.local_response_norm(x, size, alpha, beta, k)))
    return cases


def softmax():
    source = Source(16)
    cases = []
    for op in (F.softmax, F.log_softmax):
        for shape, axis in [((5,), 0), ((3, 4), 1), ((3, 4), 0), ((2, 3, 4), -2),
                            ((2, 3, 2, 2), 1)]:
            x = source.tensor(*shape, low=-6.0, high=6.0)
            cases.append(case(op.__name__, source, {"axis": axis}, {"x": x},
                              lambda x: op(x, axis)))
    return cases


def activation():
    """No value on a corner; a and b are the parameters as the references name them.

    Hardsigmoid by its formula: F.hardsigmoid's gradient of f64 is dy times 1/6 in f32.
    """
    source = Source(17)
    cases = []
    for name, args, run in [
        ("relu", {}, F.relu),
        ("relu6", {}, F.relu6),
        ("leaky_relu", {"a": 0.1}, lambda x: F.leaky_relu(x, 0.1)),
        ("elu", {"a": 1.5}, lambda x: F.elu(x, 1.5)),
        ("gelu", {}, F.gelu),
        ("gelu_tanh", {}, lambda x: F.gelu(x, approximate="tanh")),
        ("silu", {}, F.silu),
        ("mish", {}, F.mish),
        ("sigmoid", {}, torch.sigmoid),
        ("tanh", {}, torch.tanh),
        ("softplus", {"a": 2.0, "b": 9.0}, lambda x: F.softplus(x, 2.0, 9.0)),
        ("hardswish", {}, F.hardswish),
        ("hardsigmoid", {}, lambda x: F.relu6(x + 3) / 6),
    ]:
        x = torch.cat([source.tensor(12, low=-8.0, high=8.0), source.tensor(8, low=-1.0, high=1.0)])
        cases.append(case(name, source, args, {"x": x}, lambda x: run(x)))  # run may name it input
    return cases


def avg_pool2d():
    source = Source(18)
    cases = []
    for name, x, kernel, stride, padding, ceil_mode, include, divisor in [
        ("two_by_two", (2, 2, 4, 6), (2, 2), (2, 2), (0, 0), False, True, None),
        ("overlapping", (1, 2, 5, 6), (3, 2), (2, 1), (1, 0), False, True, None),
        ("exclude_padding", (1, 2, 5, 6), (3, 2), (2, 1), (1, 1), False, False, None),
        ("ceil", (1, 1, 5, 7), (2, 3), (2, 3), (0, 0), True, True, None),
        ("ceil_padding", (1, 2, 6, 5), (3, 3), (2, 3), (1, 1), True, True, None),
        ("ceil_exclude", (1, 2, 6, 5), (3, 3), (2, 3), (1, 1), True, False, None),
        ("divisor", (1, 2, 4, 5), (2, 3), (2, 1), (1, 1), False, True, 5),
        ("gaps", (1, 1, 7, 8), (2, 2), (3, 4), (0, 1), False, True, None),
    ]:
        args = {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil_mode,
                "count_include_pad": include, "divisor": divisor or 0}
        cases.append(case(name, source, args, {"x": source.tensor(*x)}, lambda x: F.avg_pool2d(
            x, kernel, stride, padding, ceil_mode, include, divisor)))
    return cases


def adaptive_avg_pool2d():
    source = Source(19)
    cases = []
    for x, size in [((2, 3, 4, 6), (1, 1)), ((1, 2, 5, 7), (2, 3)), ((1, 2, 5, 7), (5, 7)),
                    ((1, 1, 3, 4), (5, 6)), ((1, 2, 7, 6), (3, 4))]:
        cases.append(case("adaptive", source, {"size": size}, {"x": source.tensor(*x)},
                          lambda x: F.adaptive_avg_pool2d(x, size)))
    return cases


FILES = [group_norm, instance_norm, layer_norm, rms_norm, local_response_norm, softmax, activation,
         avg_pool2d, adaptive_avg_pool2d]
