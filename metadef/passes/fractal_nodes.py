"""Which operators work on FRACTAL_NZ, and which of their operands lie in it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from metadef.format import TensorDesc
from metadef.graph import Node, Tensor
from metadef.passes.layout import NOT_ZERO_SAFE, is_scalar
from metadef.passes.ub_fusion import is_elementwise

PRODUCT = "BatchMatMulV2"
"""Products that always work on fractals. The single product behind a classifier's mean gathers its few rows itself."""
_FACTORS = (0, 1)
"""Operands of a product that the cube multiplies."""
HEADS = "FractalHeads"
"""Views of heads that exist in fractals only."""
_STRETCH = 4
"""A row is stretched over all rows of a result only if that takes at most one part in so many of the result."""


def is_product(node: Node) -> bool:
    """Whether a node is a product of floating-point matrices whose operands may lie in fractals."""
    if node.domain != "ascend" or node.op_type != PRODUCT:
        return False
    descs = [node.output.desc, *(tensor.desc for tensor in node.inputs[:2] if tensor is not None)]
    return all(desc.dtype.is_float and len(desc.origin_shape) >= 2 and desc.elements for desc in descs)


def is_heavy(node: Node) -> bool:
    """Whether a node always works on fractals."""
    return is_product(node) or (node.domain == "ascend" and node.op_type == HEADS)


def neighbours(node: Node) -> Iterator[Node]:
    """Makers of the operands that have the result's rows, and readers of the result."""
    for tensor in node.inputs:
        if tensor is not None and tensor.producer is not None and tensor.desc.elements == node.output.desc.elements:
            yield tensor.producer
    for user, slot in node.output.uses:
        if wants_fractals(user, slot):
            yield user


def wants_fractals(user: Node, slot: int) -> bool:
    """Whether an operand of a node that works on fractals must lie in them."""
    tensor = user.inputs[slot]
    if tensor is None or is_scalar(tensor):
        return False
    if is_product(user):
        return slot in _FACTORS
    if user.op_type == HEADS:
        return True
    return slot == 0 or is_elementwise(user)


def is_able(node: Node) -> bool:
    """Whether an operator can work on fractals of the last two axes."""
    if node.domain != "ascend" or len(node.outputs) != 1 or not node.inputs or node.inputs[0] is None:
        return False
    desc, x = node.output.desc, node.inputs[0].desc
    rank = len(desc.origin_shape)
    plain = all(tensor is None or tensor.desc.is_plain for tensor in (*node.inputs, node.output))
    if not plain or not desc.dtype.is_float or rank < 2 or not desc.elements:
        return False
    if node.op_type == "SoftmaxV2":
        return [axis % rank for axis in node.attrs["axes"]] == [rank - 1]
    if not _is_whole(desc) and not _is_scores_work(node):
        return False
    if node.op_type == "LayerNorm":
        return bool(node.attrs["begin_norm_axis"] % rank == rank - 1)
    if node.op_type == "Reshape":
        return x.origin_shape[-2:] == desc.origin_shape[-2:]
    if not is_elementwise(node) or (node.op_type in NOT_ZERO_SAFE and not (_is_whole(desc) or _by_number(node))):
        return False
    operands = [tensor for tensor in node.inputs if tensor is not None]
    return all(tensor.desc.dtype is desc.dtype and _fits(tensor, desc) for tensor in operands)


def _is_scores_work(node: Node) -> bool:
    """Whether padding in fractals does no harm to the vendor's kernel: views, and work on one tensor.

    Its norms and its sums of tensors take fractals only where rows and columns fill them: training steps of the first
    generation have them in plain layout with 50 tokens a picture, and in fractals with 128 tokens a text.
    """
    operands = [tensor for tensor in node.inputs if tensor is not None and not is_scalar(tensor)]
    return node.op_type != "LayerNorm" and len(operands) == 1


def _by_number(node: Node) -> bool:
    """Whether a node divides by one constant number, so that zeros stay zeros."""
    divisor = node.inputs[1] if node.op_type == "RealDiv" else None
    return divisor is not None and divisor.const is not None and is_scalar(divisor) and bool(divisor.const.all())


def _is_whole(desc: TensorDesc) -> bool:
    """Whether fractals of it have no padding."""
    return desc.origin_shape[-1] % 16 == 0 and desc.origin_shape[-2] % 16 == 0


def _fits(tensor: Tensor, result: TensorDesc) -> bool:
    """Whether an operand can be laid over a result in fractals: a number, whole matrices, or one row for all."""
    shape = tensor.desc.origin_shape
    if is_scalar(tensor) or shape[-2:] == result.origin_shape[-2:]:
        return True
    row = len(shape) >= 2 and shape[-2] == 1 and shape[-1] == result.origin_shape[-1]
    return row and not tensor.is_const and _STRETCH * prod(stretched(shape, result)) <= result.elements


def stretched(shape: tuple[int, ...], result: TensorDesc) -> tuple[int, ...]:
    """An operand's shape with the last two axes of a result that it is laid over."""
    return *shape[:-2], *result.origin_shape[-2:]
