"""Benchmark cases around convolutions and products: layout changes before and after, and what a network adds behind."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod

from metadef.cost.cube_view import HF32
from metadef.dtype import DType
from metadef.error import OperatorError
from metadef.format import Format, TensorDesc, ceil_div
from metadef.kernel import Engine, Kernel
from metadef.select.vector import choose_vector_kernel
from timing_chain import Chain, Value, pixel_product, product
from timing_recipes import Case, recipe

Sides = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """A convolution's attributes, one number for each spatial axis."""

    size: Sides
    stride: Sides
    pad: Sides
    dilation: Sides
    groups: int = 1
    spare: Sides = ()

    @classmethod
    def of(cls, case: Case, axes: int, size: Sides = ()) -> Window:
        def sides(names: tuple[str, ...], default: int) -> Sides:
            found = next((case.numbers(name) for name in names if case.numbers(name)), [default])
            found = found[:axes] if len(found) == axes else found
            return tuple(found) if len(found) == axes else (found[0],) * axes

        return cls(
            size or sides(("kernel_size", "kernelSize"), 3),
            sides(("stride", "strides"), 1),
            sides(("padding", "pads"), 0),
            sides(("dilation", "dilations"), 1),
            (case.numbers("groups") or [1])[0],
            sides(("output_padding",), 0),
        )

    def out(self, image: Sides, turned: bool) -> Sides:
        """Spatial sizes of the result, of a transposed convolution if ``turned``."""
        extent = [(size - 1) * dilation + 1 for size, dilation in zip(self.size, self.dilation)]
        if turned:
            parts = zip(image, self.stride, self.pad, extent, self.spare or (0,) * len(image))
            return tuple((side - 1) * step - 2 * pad + reach + spare for side, step, pad, reach, spare in parts)
        return tuple(
            (side + 2 * pad - reach) // step + 1 for side, step, pad, reach in zip(image, self.stride, self.pad, extent)
        )


def convolve(
    chain: Chain, x: Value, channels: int, window: Window, *, turned: bool = False, bias: bool = True
) -> Value:
    """A convolution from plain layout to plain layout: image and filter are packed, the result is unpacked, unless the
    cube takes and leaves plain images.

    One spatial axis counts as the second of two. The library's convolutions over three axes are other kernels.

    Raises:
        OperatorError: there are three spatial axes.
    """
    n, c, *image = x.shape
    if len(image) > 2:
        raise OperatorError("no kernel is known for convolutions over three axes", expected="one or two")
    c0 = chain.target.c0(x.dtype)
    result = window.out(tuple(image), turned)
    if len(image) == 1:
        image, result, window = [1, *image], (1, *result), _padded(window)
    depth = ceil_div(c, c0) * c0 if window.groups == 1 else c

    def packed(channels: int, sides: Sides) -> TensorDesc:
        return TensorDesc((n, channels, *sides), x.dtype, Format.NCHW, Format.NC1HWC0, c0)

    def plain(channels: int, sides: Sides) -> TensorDesc:
        return TensorDesc((n, channels, *sides), x.dtype, Format.NCHW, Format.NCHW)

    near = Value(x.name, plain(c, tuple(image)))
    direct = chain.target.value("cube.loads_plain")
    if not direct:
        near = chain.vector("TransData", [near], outputs=[packed(depth, tuple(image))])
    sizes = (c, channels) if turned else (channels, c)
    filters = (sizes[0], sizes[1] // window.groups, *window.size)
    raw = chain.hold(TensorDesc(filters, x.dtype, Format.NCHW, Format.NCHW))
    weights = TensorDesc((filters[0], filters[1], *window.size), x.dtype, Format.NCHW, Format.FRACTAL_Z, c0)
    w = chain.vector("TransData", [raw], outputs=[weights])
    seen = packed(c, tuple(image))
    kernel = _conv_kernel(seen, weights, packed(channels, result), window, turned, bias)
    done = chain.cube(kernel, [Value(near.name, seen), w])
    out = done if direct else chain.vector("TransData", [done], outputs=[plain(channels, result)])
    return Value(out.name, TensorDesc((n, channels, *result[-(len(x.shape) - 2) :]), x.dtype))


def _padded(window: Window) -> Window:
    """A window along one axis as one over two."""
    return Window(
        (1, *window.size),
        (1, *window.stride),
        (0, *window.pad),
        (1, *window.dilation),
        window.groups,
        (0, *window.spare),
    )


def _conv_kernel(x: TensorDesc, w: TensorDesc, y: TensorDesc, window: Window, turned: bool, bias: bool) -> Kernel:
    pads = tuple(pad for pad in window.pad for _ in range(2))
    attrs: dict[str, object] = {
        "strides": (1, 1, *window.stride), "pads": pads, "dilations": (1, 1, *window.dilation),
        "groups": window.groups, "data_format": "NCHW",
    }  # fmt: skip
    inputs = (x, w, TensorDesc((y.origin_shape[1],), DType.FLOAT) if bias else None)
    if turned:
        spare = tuple(
            side - ((small - 1) * step + (size - 1) * dilation + 1 - 2 * pad)
            for side, small, step, size, dilation, pad in zip(
                y.origin_shape[2:], x.origin_shape[2:], window.stride, window.size, window.dilation, window.pad
            )
        )
        attrs |= {"output_padding": (0, 0, *spare), "input_size": y.origin_shape}
        return Kernel("Conv2DTransposeD", Engine.AICORE, inputs, (y,), attrs)
    return Kernel("Conv2D", Engine.AICORE, inputs, (y,), attrs)


@recipe("conv_2d", "depthwise_conv_2d")
def _conv_2d(case: Case) -> None:
    x, w = case.input(0), case.shapes[1]
    window = Window.of(case, 2, tuple(w[-2:]))
    convolve(case.chain, x, w[0], window)


def filter_gradient(chain: Chain, x: Sides, dy: Sides, filters: Sides, dtype: DType, hf32: bool = False) -> None:
    """dY transposed by the image laid out by taps; shapes as stored (NC1HWC0, FRACTAL_Z)."""
    taps = filters[0] // x[1]
    pixels, m, n = dy[0] * dy[2] * dy[3], dy[1] * dy[4], filters[0] * x[4]
    a, b = chain.value((pixels, m), dtype), chain.value((pixels, n), dtype)
    pixel_product(chain, a, b, m, n, pixels, taps, hf32=hf32)


def input_gradient(chain: Chain, filters: Sides, dy: Sides, dx: Sides, dtype: DType, hf32: bool = False) -> None:
    """The transposed convolution that a gradient by the input is; shapes as stored."""
    side = round((filters[0] // dx[1]) ** 0.5)
    c0 = dy[4]
    stride = max(round(dx[2] / dy[2]), 1)
    pad = max(((dy[2] - 1) * stride + side - dx[2] + 1) // 2, 0)
    window = Window((side,) * 2, (stride,) * 2, (pad,) * 2, (1, 1))
    x = TensorDesc((dy[0], dy[1] * c0, *dy[2:4]), dtype, Format.NCHW, Format.NC1HWC0, c0)
    w = TensorDesc((dy[1] * c0, dx[1] * dx[4], side, side), dtype, Format.NCHW, Format.FRACTAL_Z, c0)
    y = TensorDesc((dx[0], dx[1] * dx[4], *dx[2:4]), dtype, Format.NCHW, Format.NC1HWC0, dx[4])
    kernel = _conv_kernel(x, w, y, window, True, False)
    chain.cube(replace(kernel, attrs={**kernel.attrs, HF32: hf32}), [chain.hold(x), chain.hold(w)])


@recipe("conv_3d_backprop_filter")
def _conv_3d_dw(case: Case) -> None:
    """A product over all pixels: channels of dY by taps and channels of x."""
    (n, c, *image), (_, oc, *small) = case.shapes[:2]
    size = case.numbers("filter_size")[2:]
    c0 = case.chain.target.c0(case.dtype)
    for at, (channels, sides) in enumerate(((c, image), (oc, small))):
        plain = TensorDesc((n * sides[0], channels, *sides[1:]), case.dtype, Format.NCHW, Format.NCHW)
        packed = TensorDesc(
            (n * sides[0], ceil_div(channels, c0) * c0, *sides[1:]), case.dtype, Format.NCHW, Format.NC1HWC0, c0
        )
        case.chain.vector("TransData", [Value(case.input(at).name, plain)], outputs=[packed])
    m, columns, pixels = oc, prod(size) * ceil_div(c, c0) * c0, n * prod(small)
    a, b = case.chain.value((pixels, m), case.dtype), case.chain.value((pixels, columns), case.dtype)
    pixel_product(case.chain, a, b, m, columns, pixels, prod(size))


_CONV = re.compile(r"conv_(standard|transposed|depthwise|pointwise)_")


def is_conv(kind: str) -> bool:
    """Whether a name describes a single convolution."""
    return _CONV.search(kind) is not None


def conv_case(case: Case) -> None:
    """Single convolutions that a name describes: standard, transposed or by channel, over one to three axes."""
    axes = len(case.first) - 2
    window = Window.of(case, axes)
    channels = (case.numbers("out_channels") or [case.first[1]])[0]
    if "pointwise" in case.kind:
        window = Window((1,) * axes, window.stride, window.pad, window.dilation)
    if "depthwise" in case.kind:
        window = Window(window.size, window.stride, window.pad, window.dilation, case.first[1])
        y = convolve(case.chain, case.input(), case.first[1], window)
        if "separable" in case.kind:
            convolve(case.chain, y, channels, Window((1, 1), (1, 1), (0, 0), (1, 1)))
        return
    convolve(case.chain, case.input(), channels, window, turned="transposed" in case.kind)


# -- a product or convolution and what follows it ----------------------------------------------------------------------

_FOLLOW = {
    "ReLU": "Relu", "BiasAdd": "Add", "Add": "Add", "ResidualAdd": "Add", "Subtract": "Sub", "Multiply": "Mul",
    "Scaling": "Muls", "Scale": "Muls", "Divide": "RealDiv", "Tanh": "Tanh", "Sigmoid": "Sigmoid", "GELU": "Gelu",
    "Mish": "Mish", "Swish": "Swish", "HardSwish": "HardSwish", "Hardtanh": "ClipByValue", "Clamp": "ClipByValue",
    "LeakyReLU": "LeakyRelu", "LayerNorm": "LayerNorm", "Softmax": "SoftmaxV2", "Activation": "Mish",
    "Dropout": "DropOutDoMask",
}  # fmt: skip
_SHRINK = {"Sum", "Max", "Min", "Mean", "LogSumExp", "GlobalAvgPool", "AvgPool", "MaxPool"}


def follow(case: Case, value: Value, names: list[str]) -> None:
    """One kernel for each operator that a case's name lists."""
    for name in names:
        chain, shape = case.chain, value.shape
        rows = (prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (1, shape[0])
        if name == "Sum" and ("bias_shape" in case.attrs or "sum_tensor_shape" in case.attrs):
            value = chain.vector("Add", [value])
        elif name in _SHRINK:
            if name == "LogSumExp":
                value = chain.vector("Exp", [value])
            reduced = (*shape[:1], 1) if len(shape) == 2 else (*shape[:2], *[1] * (len(shape) - 2))
            value = chain.vector("ReduceSum", [value], reduced)
        elif name in ("GroupNorm", "InstanceNorm"):
            groups = (case.numbers("num_groups") or case.numbers("groups") or [8])[0] if name[0] == "G" else shape[1]
            view = (shape[0] * groups, prod(shape) // (shape[0] * groups))
            chain.vector("GroupNorm", [Value(value.name, TensorDesc(view, value.dtype))])
        elif name == "BatchNorm":
            view = (prod(shape[:2]), prod(shape[2:])) if len(shape) > 2 else rows
            seen = Value(value.name, TensorDesc(view, value.dtype))
            part = chain.vector("BnStatistics", [seen], (view[0], 2))
            chain.vector("BnUpdate", [seen, part])
        else:
            value = chain.vector(_FOLLOW.get(name, name), [value])


_HEADS = re.compile(r"^(Gemm|Matmul|BMM|Conv2d|Conv2D|Conv3d|ConvTranspose2d|ConvTranspose3d)_(.+)$")


def composed_case(case: Case) -> bool:
    """Cases whose name is a product or convolution and what follows it; False if it is not one."""
    found = _HEADS.match(case.kind)
    if found is None:
        return False
    head, rest = found.groups()
    x = case.input()
    if head in ("Gemm", "Matmul", "BMM"):
        n = (case.numbers("out_features") or case.numbers("hidden_size"))[0]
        m, k = prod(case.first[:-1]), case.first[-1]
        weights = case.chain.value((n, k), case.dtype)
        value = product(case.chain, x, weights, m, n, k, turned=(False, True))
    else:
        axes = len(case.first) - 2
        channels = case.numbers("out_channels")[0]
        value = convolve(case.chain, x, channels, Window.of(case, axes), turned="Transpose" in head)
    follow(case, value, rest.split("_"))
    return True


def pool(case: Case) -> None:
    """Pooling of a plain image: packed, pooled in blocks of channels, unpacked.

    Raises:
        OperatorError: there are three spatial axes.
    """
    x, chain = case.input(), case.chain
    n, c, *image = x.shape
    if len(image) > 2:
        raise OperatorError("no kernel is known for pooling over three axes", expected="one or two")
    given = Window.of(case, len(image))
    if not case.numbers("stride"):
        given = replace(given, stride=given.size)
    result = given.out(tuple(image), False)
    if len(image) == 1:
        image, result, given = [1, *image], (1, *result), _padded(given)
    c0 = 16
    sides = [TensorDesc((n, c, *side), x.dtype, Format.NCHW, Format.NC1HWC0, c0) for side in (image, result)]
    plain = [TensorDesc((n, c, *side), x.dtype, Format.NCHW, Format.NCHW) for side in (image, result)]
    packed = chain.vector("TransData", [Value(x.name, plain[0])], outputs=[sides[0]])
    attrs = {
        "ksize": (1, 1, *given.size), "strides": (1, 1, *given.stride),
        "pads": (*(given.pad[0],) * 2, *(given.pad[1],) * 2), "data_format": "NCHW",
        "ceil_mode": False, "count_include_pad": True, "global_pooling": False,
    }  # fmt: skip
    name = "MaxPoolV3" if case.kind.startswith("Max") else "AvgPoolV2"
    kernel = choose_vector_kernel(Kernel(name, Engine.VECTOR, (sides[0],), (sides[1],), attrs), chain.target)
    done = chain.cube(kernel, [packed], chosen=True)
    chain.vector("TransData", [done], outputs=[plain[1]])
