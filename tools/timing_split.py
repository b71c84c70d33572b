"""Rows of the first generation's training steps with the block_dim of the vendor's rules in place of the published."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from metadef.select.vendor import convolution_block_dim, product_block_dim, vector_block_dim
from timing_data import parse_shapes

CORES = 30
_KINDS = {"Conv2DBackpropInput": "input", "Conv2DBackpropFilter": "filter", "Conv2D": "forward"}


Adjust = Callable[[dict[str, str]], dict[str, str]]


def published(row: dict[str, str]) -> dict[str, str]:
    """The row as it is."""
    return row


def ruled(row: dict[str, str]) -> dict[str, str]:
    """The row with its block_dim by rule."""
    inputs, outputs = parse_shapes(row["input_shapes"]), parse_shapes(row["output_shapes"])
    kind = next((kind for name, kind in _KINDS.items() if name in row["op_type"]), None)
    if kind is not None:
        cores = convolution_block_dim(kind, inputs[0][0], CORES)
    elif "MatMul" in row["op_type"] and "Batch" not in row["op_type"]:
        cores = product_block_dim(outputs[0][-3], outputs[0][-4], CORES)
    elif "BatchMatMul" in row["op_type"]:
        cores = min(CORES, prod(outputs[0][:-4]))
    else:
        cores = vector_block_dim(row["op_type"], max((*inputs, *outputs), key=prod), CORES)
    return {**row, "block_dim": str(cores)}
