"""Host plans of element-wise operators: a task and its fused chain become one expression, computed in one sweep.

Blocked tensors (NC1HWC0) are walked in storage order. Their padding lanes must stay zero, since matrix products read
them; where the expression does not turn zeros into zeros, a lane mask is part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from metadef.format import Format
from metadef.ops.quantise import unpacked_scale
from metadef.program import Operand
from npusim.kernels.desc import SIZE, Call
from npusim.kernels.elementwise import View, elementwise
from npusim.kernels.plans.site import NoFastKernel, Site
from npusim.twin import one_element, run_wide

_TEMPLATES = {
    "Abs": "abs({0})",
    "Add": "add({0},{1})",
    "AscendDequant": "mul({0},{1})",
    "AscendRequant": "add(round(mul({0},{1})),{offset})",
    "Ceil": "ceil({0})",
    "ClipByValue": "clip({0},{clip_value_min},{clip_value_max})",
    "Elu": "elu({0},{alpha})",
    "Equal": "equal({0},{1})",
    "Erf": "erf({0})",
    "Exp": "exp({0})",
    "Floor": "floor({0})",
    "FloorMod": "mod({0},{1})",
    "Greater": "greater({0},{1})",
    "GreaterEqual": "greater_equal({0},{1})",
    "HardSigmoid": "hardsigmoid({0},{alpha},{beta})",
    "HardSwish": "hardswish({0})",
    "IsNan": "isnan({0})",
    "LeakyRelu": "leaky_relu({0},{negative_slope})",
    "Less": "less({0},{1})",
    "LessEqual": "less_equal({0},{1})",
    "Log": "log({0})",
    "LogicalAnd": "and({0},{1})",
    "LogicalNot": "not({0})",
    "LogicalOr": "or({0},{1})",
    "LogicalXor": "xor({0},{1})",
    "Maximum": "max({0},{1})",
    "Minimum": "min({0},{1})",
    "Mish": "mish({0})",
    "Mul": "mul({0},{1})",
    "Neg": "neg({0})",
    "NotEqual": "not_equal({0},{1})",
    "PRelu": "leaky_relu({0},{1})",
    "Pow": "pow({0},{1})",
    "RealDiv": "div({0},{1})",
    "Reciprocal": "reciprocal({0})",
    "Relu": "relu({0})",
    "Relu6": "clip({0},0,6)",
    "Round": "round({0})",
    "Rsqrt": "rsqrt({0})",
    "SelectV2": "where({0},{1},{2})",
    "Sigmoid": "sigmoid({0})",
    "Sign": "sign({0})",
    "Softplus": "softplus({0})",
    "Softsign": "softsign({0})",
    "Sqrt": "sqrt({0})",
    "Sub": "sub({0},{1})",
    "Tanh": "tanh({0})",
}
ELEMENTWISE_TYPES = (*_TEMPLATES, "AccumulateNV2", "Cast", "Gelu", "Swish")
FLOAT_ONLY = frozenset({"Pow"})
_SCALED = frozenset({"AscendDequant", "AscendRequant"})
_MOST_PARAMETERS = 8


@dataclass
class _Chain:
    """The expression of a task under construction; attribute values become parameters p0, p1, …"""

    parameters: list[float] = field(default_factory=list)

    def apply(self, op_type: str, attrs: Mapping[str, Any], operands: Sequence[str]) -> str:
        """The operator's expression over operand texts. Raises NoFastKernel for a type without one."""
        if op_type == "AccumulateNV2":
            text = operands[0]
            for operand in operands[1:]:
                text = f"add({text},{operand})"
            return text
        if op_type == "Cast":
            return operands[0]
        if op_type == "Gelu":
            return f"{'gelu_tanh' if attrs['approximate'] == 'tanh' else 'gelu'}({operands[0]})"
        if op_type == "Swish":
            return self._swish(operands[0], attrs["scale"])
        if op_type not in _TEMPLATES:
            raise NoFastKernel(f"no expression computes {op_type}")
        template = _TEMPLATES[op_type]
        named = {name: self.parameter(value) for name, value in attrs.items() if f"{{{name}}}" in template}
        return template.format(*operands, **named)

    def parameter(self, value: float) -> str:
        """The text that stands for a number. Raises NoFastKernel beyond the kernels' parameter fields."""
        if len(self.parameters) == _MOST_PARAMETERS:
            raise NoFastKernel("the fused chain holds too many numbers")
        self.parameters.append(float(value))
        return f"p{len(self.parameters) - 1}"

    def _swish(self, operand: str, scale: float) -> str:
        if scale == 1.0:
            return f"silu({operand})"
        return f"mul({operand},sigmoid(mul({operand},{self.parameter(scale)})))"


def plan_elementwise(site: Site) -> list[Call]:
    """Any element-wise operator with its fused chain, broadcasting, in plain or blocked layout."""
    kernel = site.kernel
    operands = [operand for operand in site.task.inputs if operand is not None]
    if len(operands) != len(site.task.inputs):
        raise NoFastKernel(f"{kernel.op_type} with an absent operand")
    _check_types(site, operands)
    chain = _Chain()
    names = [f"x{slot}" for slot in range(len(operands))]
    base = len(operands) - sum(item.operand is not None for item in kernel.fused)
    text = chain.apply(kernel.op_type, kernel.attrs, names[:base])
    for item in kernel.fused:
        extra = [] if item.operand is None else [names[item.operand]]
        text = chain.apply(item.op_type, item.attrs, [text, *extra])
    return [sweep(site, operands, text, chain.parameters)]


def sweep(site: Site, operands: Sequence[Operand], text: str, parameters: Sequence[float]) -> Call:
    """One elementwise call over the output's storage, with the padding lanes kept at zero."""
    out = site.output()
    grid = Grid.of(site)
    keep: list[object] = []
    views = [grid.view(site, slot, operand, keep) for slot, operand in enumerate(operands)]
    target = grid.own_view(site.address(out), site.element(out))
    if grid.has_padding and not _keeps_zeros(site, operands):
        if grid.whole:
            raise NoFastKernel(f"{out.desc.format.name} with padding that the operator does not keep at zero")
        mask = grid.mask()
        keep.append(mask)
        text = f"where(x{len(views)},{text},0)"
        views.append(View(mask.ctypes.data, "b8", grid.mask_strides()))
    try:
        call = elementwise(text, views, target, grid.shape, parameters, site.options.saturate)
    except ValueError as error:
        raise NoFastKernel(str(error)) from None
    call.keep.extend(keep)
    return call


def plan_batch_norm(site: Site) -> list[Call]:
    """BNInfer with constant statistics: (x - mean) * factor + offset, one sweep."""
    if site.kernel.fused:
        raise NoFastKernel("batch normalisation with a fused chain")
    x, out = site.input(0), site.output()
    scale, offset, mean, variance = (site.wide_constant(slot) for slot in range(1, 5))
    factor = scale / np.sqrt(variance + np.float32(site.kernel.attrs["epsilon"]))
    grid, keep = Grid.of(site), []  # type: tuple[Grid, list[object]]
    if grid.whole:
        raise NoFastKernel(f"batch normalisation on {out.desc.format.name}")
    channel = (-1,) + (1,) * (len(x.desc.origin_shape) - 2)
    views = [grid.view(site, 0, x, keep)]
    views += [grid.constant_view(array.reshape(channel), "f32", keep) for array in (mean, factor, offset)]
    target = grid.own_view(site.address(out), site.element(out))
    call = elementwise("add(mul(sub(x0,x1),x2),x3)", views, target, grid.shape, saturate=site.options.saturate)
    call.keep.extend(keep)
    return [call]


@dataclass(frozen=True)
class Grid:
    """The box an element-wise kernel walks: the framework shape, or N, C1, H, W, C0 of a blocked result."""

    shape: tuple[int, ...]
    origin: tuple[int, ...]
    c0: int
    whole: bool = False

    @classmethod
    def of(cls, site: Site) -> Grid:
        """From a task's result. Raises NoFastKernel for a format that has no grid."""
        desc = site.output().desc
        if desc.is_plain:
            return cls(desc.origin_shape, desc.origin_shape, 0)
        if desc.format is Format.NC1HWC0 and desc.origin_format is not Format.NHWC:
            return cls(desc.shape, desc.origin_shape, desc.c0)
        return cls(desc.shape, desc.origin_shape, 0, whole=True)

    @property
    def has_padding(self) -> bool:
        """Whether the box holds elements that the framework's tensor has not."""
        return prod(self.shape) != prod(self.origin)

    def own_view(self, address: int, element: str) -> View:
        """A tensor that fills the box."""
        return View.dense(address, element, self.shape)

    def view(self, site: Site, slot: int, operand: Operand, keep: list[object]) -> View:
        """An operand stretched over the box. Raises NoFastKernel where its layout does not fit the result's."""
        if site.kernel.op_type in _SCALED and slot == 1:
            return self.constant_view(unpacked_scale(site.constant(slot)), "f32", keep)
        desc, element = operand.desc, site.element(operand)
        if self.whole:
            if desc.shape != self.shape or desc.format is not site.output().desc.format:
                raise NoFastKernel(f"{desc.format.name} operands of different shape")
            return self.own_view(site.address(operand), element)
        if not self.c0:
            if not desc.is_plain:
                raise NoFastKernel(f"{desc.format.name} operand of a plain result")
            return _dense(site.address(operand), element, desc.origin_shape, self.shape)
        if desc.format is Format.NC1HWC0:
            if desc.c0 != self.c0:
                raise NoFastKernel("operands have different C0")
            return View(site.address(operand), element, self._blocked_strides(desc.origin_shape, SIZE[element]))
        return self._plain_onto_blocked(site, slot, operand, element, keep)

    def mask(self) -> np.ndarray:
        """1 for every lane (C1, C0) that holds a channel."""
        lanes = np.arange(self.shape[1] * self.shape[4]) < self.origin[1]
        return np.ascontiguousarray(lanes.astype(np.uint8))

    def mask_strides(self) -> tuple[int, ...]:
        return 0, self.c0, 0, 0, 1

    def _blocked_strides(self, origin: tuple[int, ...], size: int) -> tuple[int, ...]:
        n, c, h, w = origin
        planes = -(-c // self.c0)
        pixel = self.c0 * size
        steps = (planes * h * w * pixel, h * w * pixel, w * pixel, pixel, size)
        single = (n == 1, c == 1, h == 1, w == 1, c == 1)
        return tuple(0 if one else step for one, step in zip(single, steps, strict=True))

    def _plain_onto_blocked(self, site: Site, slot: int, operand: Operand, element: str, keep: list[object]) -> View:
        shape = operand.desc.origin_shape
        if len(shape) >= 3 and shape[-3] not in (1, self.shape[1] * self.c0):
            return self.constant_view(site.constant(slot), element, keep)
        return self._plain_view(site.address(operand), element, shape)

    def constant_view(self, array: np.ndarray, element: str, keep: list[object]) -> View:
        """A host array that broadcasts to the framework's shape, stretched over the box."""
        if not self.c0:
            array = np.ascontiguousarray(array)
            keep.append(array)
            return _dense(array.ctypes.data, element, array.shape, self.shape)
        padded = self._padded(array.reshape((1,) * (4 - array.ndim) + array.shape))
        keep.append(padded)
        return self._plain_view(padded.ctypes.data, element, padded.shape)

    def _plain_view(self, address: int, element: str, shape: tuple[int, ...]) -> View:
        """A row-major tensor of up to four axes, its channels a multiple of C0 or one, over a blocked box."""
        if len(shape) > 4:
            raise NoFastKernel("plain operand of more than four axes for a blocked result")
        n, c, h, w = (1,) * (4 - len(shape)) + shape
        size = SIZE[element]
        steps = (c * h * w * size, h * w * size * self.c0, w * size, size, h * w * size)
        single = (n == 1, c == 1, h == 1, w == 1, c == 1)
        return View(address, element, tuple(0 if one else step for one, step in zip(single, steps, strict=True)))

    def _padded(self, array: np.ndarray) -> np.ndarray:
        """NCHW array with zeros up to whole channel blocks; one channel stays one."""
        short = 0 if array.shape[1] == 1 else -array.shape[1] % self.c0
        return np.ascontiguousarray(np.pad(array, ((0, 0), (0, short), (0, 0), (0, 0))))


def _dense(address: int, element: str, shape: tuple[int, ...], onto: tuple[int, ...]) -> View:
    try:
        return View.dense(address, element, shape, onto)
    except ValueError as error:
        raise NoFastKernel(str(error)) from None


def _check_types(site: Site, operands: Sequence[Operand]) -> None:
    types = {site.kernel.op_type, *(item.op_type for item in site.kernel.fused)}
    if types & FLOAT_ONLY and not all(operand.desc.dtype.is_float for operand in operands):
        raise NoFastKernel("powers of integers")
    if site.kernel.fused and not site.output().desc.dtype.is_float:
        raise NoFastKernel("a fused chain on integers")


def _keeps_zeros(site: Site, operands: Sequence[Operand]) -> bool:
    """Whether the task maps padding lanes (zeros of blocked operands, anything of others) to zeros."""
    arrays = []
    for operand in operands:
        single = operand.desc.format is Format.NC1HWC0 and operand.desc.origin_shape[1] == 1
        blocked, is_float = not operand.desc.is_plain and not single, operand.desc.dtype.is_float
        arrays.append(one_element(0.0 if blocked or not is_float else np.nan, operand.desc))
        if not blocked and not is_float:
            return False
    (result,) = run_wide(site.kernel, arrays, node=site.task.name)
    return bool(np.all(result == 0))
