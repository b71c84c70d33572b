"""Rules for what networks are made of: convolution, matrix products, pooling, normalisation, softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from metadef.graph import Tensor
from metadef.legalize.table import Step, Unmapped, rule
from metadef.ops.geometry import same_padding
from metadef.ops.numeric import widen


def _pair(values: Sequence[int]) -> tuple[int, int]:
    """(H, W) entries; a single one is W of a line of height 1."""
    return (1, values[0]) if len(values) == 1 else (values[0], values[1])


def window_attrs(step: Step, kernel: Sequence[int], spatial: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """strides, pads and dilations of the Ascend form from ONNX's, ``auto_pad`` resolved; one or two spatial axes."""
    rank = len(kernel)
    strides = step.attr("strides") or (1,) * rank
    dilations = step.attr("dilations") or (1,) * rank
    mode = step.auto_pad()
    begins, ends = [0] * rank, [0] * rank
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        for axis in range(rank):
            begins[axis], ends[axis] = same_padding(
                spatial[axis], kernel[axis], strides[axis], dilations[axis], upper=mode == "SAME_UPPER"
            )
    elif mode == "NOTSET" and step.attr("pads"):
        begins, ends = list(step.attr("pads")[:rank]), list(step.attr("pads")[rank:])
    if min((*begins, *ends)) < 0:
        raise Unmapped("negative padding")
    if rank == 1:
        begins, ends = [0, *begins], [0, *ends]
    return {
        "strides": (1, 1, *_pair(strides)),
        "dilations": (1, 1, *_pair(dilations)),
        "pads": (begins[0], ends[0], begins[1], ends[1]),
    }


def _on_planes(step: Step, x: Tensor, build: Callable[[Tensor, bool], Sequence[Tensor] | Tensor]) -> Sequence[Tensor]:
    """Run ``build(x, final)`` on images; a stack of lines (rank 3) is seen as images of height 1."""
    rank = len(x.desc.origin_shape)
    if rank == 4:
        return build(step.images(x), True)  # type: ignore[return-value]
    if rank != 3:
        raise Unmapped(f"{rank - 2} spatial axes")
    n, c, w = x.desc.origin_shape
    line = build(step.images(step.reshape(x, (n, c, 1, w))), False)
    return step.out("Reshape", [line], {"shape": step.result().origin_shape})  # type: ignore[list-item]


@rule("Conv")
def conv(step: Step) -> Sequence[Tensor]:
    x, weight = step[0], step[1]
    oc, group_c, *kernel = weight.desc.origin_shape
    if len(kernel) not in (1, 2):
        raise Unmapped(f"a convolution over {len(kernel)} spatial axes")
    step.check_kernel(kernel)
    attrs = window_attrs(step, kernel, x.desc.origin_shape[2:])
    filters = step.images(step.reshape(weight, (oc, group_c, *_pair(kernel))))

    def build(image: Tensor, final: bool) -> Sequence[Tensor] | Tensor:
        add = step.out if final else step.op
        return add("Conv2D", [image, filters, step.optional(2)], {**attrs, "groups": step.attr("group", 1)})

    return _on_planes(step, x, build)


@rule("MaxPool", "AveragePool")
def pool(step: Step) -> Sequence[Tensor]:
    kernel = step.attr("kernel_shape")
    if len(kernel) > 2:
        raise Unmapped(f"pooling over {len(kernel)} spatial axes")
    attrs = window_attrs(step, kernel, step.shape()[2:])
    if attrs.pop("dilations") != (1, 1, 1, 1):
        raise Unmapped("a dilated window")
    if step.is_read(1):
        raise Unmapped("the indices of the maxima are read")
    extra = {"ksize": (1, 1, *_pair(kernel)), "ceil_mode": bool(step.attr("ceil_mode", 0))}
    op_type = "MaxPoolV3"
    if step.node.op_type == "AveragePool":
        op_type, extra["exclusive"] = "AvgPoolV2", not step.attr("count_include_pad", 0)

    def build(image: Tensor, final: bool) -> Sequence[Tensor] | Tensor:
        return (step.out if final else step.op)(op_type, [image], {**attrs, **extra})

    return _on_planes(step, step[0], build)


@rule("GlobalAveragePool", "GlobalMaxPool")
def global_pool(step: Step) -> Sequence[Tensor]:
    average = step.node.op_type == "GlobalAveragePool"
    if average and step.rank() == 4:
        return step.out("GlobalAveragePool", [step.images(step[0])])
    axes = tuple(range(2, step.rank()))
    return step.out("ReduceMeanD" if average else "ReduceMaxD", [step[0]], {"axes": axes, "keep_dims": True})


@rule("GlobalLpPool")
def global_lp_pool(step: Step) -> Sequence[Tensor]:
    """(sum of |x|^p)^(1/p) over the image."""
    power = step.attr("p", 2)
    if power < 1:
        raise Unmapped(f"a norm of order {power}")
    attrs = {"axes": tuple(range(2, step.rank())), "keep_dims": True}
    size = step.op("Abs", [step[0]])
    if power == 1:
        return step.out("ReduceSumD", [size], attrs)
    raised = step.op("Pow", [size, step.scalar(float(power), "p", step[0])])
    total = step.op("ReduceSumD", [raised], attrs)
    return step.out("Pow", [total, step.scalar(1 / power, "root", step[0])])


@rule("BatchNormalization")
def batch_norm(step: Step) -> Sequence[Tensor]:
    if step.attr("training_mode", 0):
        raise Unmapped("training mode computes statistics of the batch")
    if not step.attr("spatial", 1):
        raise Unmapped("statistics for every pixel (spatial=0)")
    return step.out("BNInfer", [step.images(step[0]), *step.inputs[1:5]], {"epsilon": step.attr("epsilon", 1e-5)})


@rule("LayerNormalization")
def layer_norm(step: Step) -> Sequence[Tensor]:
    if step.is_read(1) or step.is_read(2):
        raise Unmapped("mean or deviation are read")
    axis = step.axis(-1)
    shape = step.shape()[axis:]
    parameters = [None if step.optional(i) is None else _stretched(step, step[i], shape) for i in (1, 2)]
    attrs = {"begin_norm_axis": axis, "epsilon": step.attr("epsilon", 1e-5)}
    return step.out("LayerNorm", [step[0], *parameters], attrs)


@rule("RMSNormalization")
def rms_norm(step: Step) -> Sequence[Tensor]:
    axis = step.axis(-1)
    gamma = _stretched(step, step[1], step.shape()[axis:])
    return step.out("RmsNorm", [step[0], gamma], {"epsilon": step.attr("epsilon", 1e-5)})


def _stretched(step: Step, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """A constant parameter stretched to the axes it scales."""
    if tensor.desc.origin_shape == tuple(shape):
        return tensor
    if tensor.const is None:
        raise Unmapped("a computed scale or bias of another shape than the normalised axes")
    stretched = np.broadcast_to(tensor.const, tuple(shape))
    return step.stored(stretched, f"{tensor.name.rpartition('/')[2]}_stretched", tensor.desc.dtype)


@rule("InstanceNormalization")
def instance_norm(step: Step) -> Sequence[Tensor]:
    return step.out("InstanceNorm", step.inputs, {"epsilon": step.attr("epsilon", 1e-5)})


@rule("GroupNormalization", since=18)
def group_norm(step: Step) -> Sequence[Tensor]:
    """Groups become channels of an InstanceNorm without scale; scale and bias follow, one an original channel."""
    n, c, *spatial = step.shape()
    groups = step.attr("num_groups")
    dtype = step.dtype()
    ones, zeros = step.constant(np.ones(groups), "gamma", dtype), step.constant(np.zeros(groups), "beta", dtype)
    grouped = step.reshape(step[0], (n, groups, c // groups * prod(spatial)))
    normal = step.op("InstanceNorm", [grouped, ones, zeros], {"epsilon": step.attr("epsilon", 1e-5)})
    normal = step.reshape(normal, step.shape())
    parameters = []
    for position in (1, 2):
        tensor = step[position]
        if tensor.desc.origin_shape == (groups,) and groups != c:
            value = np.repeat(step.value(position, "a scale or bias for every group"), c // groups)
            tensor = step.constant(value, f"parameter{position}", tensor.desc.dtype)
        parameters.append(step.reshape(tensor, (c, *(1,) * len(spatial))))
    scaled = step.op("Mul", [normal, parameters[0]])
    return step.out("Add", [scaled, parameters[1]])


@rule("Softmax", "LogSoftmax", until=12)
def softmax_of_matrix(step: Step) -> Sequence[Tensor]:
    """The old form: axes from ``axis`` on (default 1) are one long axis."""
    axis, rank = step.attr("axis", 1) % max(step.rank(), 1), step.rank()
    op_type = f"{step.node.op_type}V2"
    if axis == rank - 1:
        return step.out(op_type, [step[0]], {"axes": (-1,)})
    shape = step.shape()
    matrix = step.reshape(step[0], (prod(shape[:axis]), prod(shape[axis:])))
    return step.out("Reshape", [step.op(op_type, [matrix], {"axes": (-1,)})], {"shape": shape})


@rule("Softmax", "LogSoftmax", since=13)
def softmax(step: Step) -> Sequence[Tensor]:
    axis = step.attr("axis", -1) % max(step.rank(), 1)
    return step.out(f"{step.node.op_type}V2", [step[0]], {"axes": (-1,) if axis == step.rank() - 1 else (axis,)})


@rule("Gemm")
def gemm(step: Step) -> Sequence[Tensor]:
    alpha, beta = step.attr("alpha", 1.0), step.attr("beta", 1.0)
    weight, addend = step[1], step.optional(2)
    attrs = {"transpose_x1": bool(step.attr("transA", 0)), "transpose_x2": bool(step.attr("transB", 0))}
    if alpha != 1.0 and weight.const is not None:
        weight, alpha = _scaled_constant(step, weight, alpha, "alpha"), 1.0
    n = step.result().origin_shape[1]
    if alpha == 1.0 and (addend is None or addend.desc.origin_shape in ((n,), (1, n), (1,), (), (1, 1))):
        bias = None if addend is None else _bias(step, addend, beta, n)
        return step.out("MatMulV2", [step[0], weight, bias], attrs)
    product = step.op("MatMulV2", [step[0], weight], attrs)
    if addend is None:
        return step.out("Mul", [product, step.scalar(alpha, "alpha", product)])
    if alpha != 1.0:
        product = step.op("Mul", [product, step.scalar(alpha, "alpha", product)])
    return step.out("Add", [product, _scaled(step, addend, beta)])


def _bias(step: Step, addend: Tensor, beta: float, n: int) -> Tensor:
    """Gemm's C as a bias of n elements."""
    scaled = _scaled(step, addend, beta)
    shape = scaled.desc.origin_shape
    if shape in ((n,), (1, n)):
        return step.reshape(scaled, (n,))
    if scaled.const is not None:
        return step.stored(np.broadcast_to(scaled.const.reshape(-1), (n,)), "bias", scaled.desc.dtype)
    return step.op("BroadcastToD", [step.reshape(scaled, (1,))], {"shape": (n,)})


def _scaled(step: Step, tensor: Tensor, factor: float) -> Tensor:
    if factor == 1.0:
        return tensor
    if tensor.const is not None:
        return _scaled_constant(step, tensor, factor, "beta")
    return step.op("Mul", [tensor, step.scalar(factor, "beta", tensor)])


def _scaled_constant(step: Step, tensor: Tensor, factor: float, suffix: str) -> Tensor:
    """A new constant, so that other readers of the old one see no change."""
    assert tensor.const is not None
    dtype = tensor.desc.dtype
    return step.constant(widen(tensor.const, dtype, np.float64) * factor, suffix, dtype)


@rule("MatMul")
def matmul(step: Step) -> Sequence[Tensor]:
    """Vectors are seen as matrices of one row or column; stacks of matrices go to the batched form."""
    a, b = step[0], step[1]
    if step.rank(0) == 1:
        a = step.reshape(a, (1, *step.shape(0)))
    if step.rank(1) == 1:
        b = step.reshape(b, (*step.shape(1), 1))
    flat = len(a.desc.origin_shape) == 2 == len(b.desc.origin_shape)
    op_type = "MatMulV2" if flat else "BatchMatMulV2"
    if (step.rank(0), step.rank(1)) == (len(a.desc.origin_shape), len(b.desc.origin_shape)):
        return step.out(op_type, [a, b])
    return step.out("Reshape", [step.op(op_type, [a, b])], {"shape": step.result().origin_shape})
