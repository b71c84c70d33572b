"""Fused operators of a task, in the words of the kernels: an epilogue of cube kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from metadef.kernel import FusedOp
from npusim.kernels.desc import Call
from npusim.kernels.epilogue import Epilogue
from npusim.kernels.plans.site import NoFastKernel, Site

__all__ = ["Call", "Epilogue", "clip_bounds", "epilogue_of", "extensible"]


def extensible(site: Site, make: Callable[[int, Epilogue], Call], rule: Epilogue) -> Call:
    """The call of a product, which can be made again to go on with an expression.

    ``make`` takes the host address of the result. Where overflow saturates it would have to do so twice: no extension.
    """
    call = make(site.address(site.output()), rule)
    if not rule.saturate:
        call.followed_by = lambda text, address: make(site.device.host_address(address), replace(rule, then=text))
    return call


def epilogue_of(site: Site, fused: Sequence[FusedOp]) -> Epilogue:
    """The epilogue of a cube task: at most one Add of a tensor laid out like the result, then at most one activation.

    ``fused`` is the task's chain, or what is left of it. Residuals of computed operands may lie on the result itself.

    Raises:
        NoFastKernel: the chain has another form.
    """
    chain = list(fused)
    residual = 0
    if chain and chain[0].op_type == "Add" and chain[0].operand is not None:
        operand = site.input(chain.pop(0).operand or 0)
        if operand.desc != site.output().desc:
            raise NoFastKernel("the fused Add broadcasts or changes the layout")
        residual = site.address(operand)
    saturate = site.options.saturate
    if not chain:
        return Epilogue(residual=residual, saturate=saturate)
    if len(chain) > 1:
        names = ", ".join(item.op_type for item in chain)
        raise NoFastKernel(f"the fused chain {names} is not residual, then activation")
    return _with_activation(residual, saturate, chain[0])


def _with_activation(residual: int, saturate: bool, item: FusedOp) -> Epilogue:
    if item.op_type in ("Relu6", "ClipByValue"):
        low, high = clip_bounds(item.op_type, item.attrs)
        return Epilogue(residual, "clip", lo=low, hi=high, saturate=saturate)
    if item.op_type == "LeakyRelu":
        return Epilogue(residual, "leaky_relu", alpha=item.attrs["negative_slope"], saturate=saturate)
    plain = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh"}
    if item.op_type == "Swish" and item.attrs.get("scale", 1.0) == 1.0:
        return Epilogue(residual, "silu", saturate=saturate)
    if item.op_type == "Gelu" and item.attrs.get("approximate", "none") == "none":
        return Epilogue(residual, "gelu", saturate=saturate)
    if item.op_type not in plain:
        raise NoFastKernel(f"no epilogue computes a fused {item.op_type}")
    return Epilogue(residual, plain[item.op_type], saturate=saturate)


def clip_bounds(op_type: str, attrs: Mapping[str, Any]) -> tuple[float, float]:
    """Lower and upper bound of Relu6 or ClipByValue."""
    if op_type == "Relu6":
        return 0.0, 6.0
    return attrs["clip_value_min"], attrs["clip_value_max"]
