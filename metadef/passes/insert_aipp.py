"""InsertAipp: an AIPP operator in front of every input that the AIPP configuration names.

The input then takes pictures, bytes in NHWC of the source's size; what read it before reads what AIPP makes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from metadef.aipp import CODE, AippOp
from metadef.dtype import DType
from metadef.error import InferError, LabError, Problem, UsageError, suggest
from metadef.format import Format, Shape, TensorDesc
from metadef.graph import Graph, Tensor
from metadef.op import FLOATS, get_op
from metadef.rewrite import Pass, PassContext

OP_TYPE = "Aipp"


@dataclass(frozen=True)
class InsertAipp(Pass):
    """Raises UsageError for all blocks of the configuration that do not fit the graph's inputs, at once."""

    def run(self, graph: Graph, context: PassContext) -> bool:
        blocks = () if graph.is_nested else context.options.aipp
        problems: list[Problem] = []
        settled: dict[int, tuple[Tensor, AippOp]] = {}
        for block in blocks:
            try:
                tensor = _input_of(graph.inputs, block)
                if id(tensor) in settled:
                    first = settled[id(tensor)][1].place
                    raise UsageError(
                        f"input '{tensor.name}' has a block already", code=CODE, port=block.place, got=first
                    )
                settled[id(tensor)] = tensor, block
                _check(tensor, block)
            except LabError as error:
                problems += error.problems
        if problems:
            raise UsageError(problems)
        for tensor, block in settled.values():
            _insert(graph, tensor, block, context)
        return bool(settled)


def _input_of(inputs: Sequence[Tensor], block: AippOp) -> Tensor:
    """The input that a block means. Raises UsageError if there is none."""
    name, rank = block.values["related_input_name"], block.values["related_input_rank"]
    names = [tensor.name for tensor in inputs]
    if name:
        if name not in names:
            raise UsageError(
                f"the model has no input '{name}'", code="E10017", port=block.place, hint=suggest(name, names)
            )
        return inputs[names.index(name)]
    if rank >= len(inputs):
        listed = ", ".join(f"{at} '{item}'" for at, item in enumerate(names))
        raise UsageError(
            f"there is no input number {rank}", code=CODE, port=block.place, expected=listed or "no inputs"
        )
    return inputs[rank]


def _check(tensor: Tensor, block: AippOp) -> None:
    """Raises LabError where AIPP cannot make an input."""
    desc, where = tensor.desc, f"{block.place}, input '{tensor.name}'"
    if desc.dtype not in FLOATS:
        expected = ", ".join(dtype.label for dtype in FLOATS)
        hint = "AIPP makes floats of bytes; a model that takes bytes itself is fed without it"
        text = "what AIPP would feed does not take floats"
        raise UsageError(text, code="E10034", port=where, expected=expected, got=desc.dtype.label, hint=hint)
    if len(desc.origin_shape) != 4 or desc.origin_format is Format.NHWC:
        got = f"{desc.origin_format.name} {list(desc.origin_shape)}"
        raise UsageError("AIPP makes images only", code=CODE, port=where, expected="an input (N, C, H, W)", got=got)
    attrs = {**block.attrs(desc.origin_shape), "dst_type": desc.dtype}
    try:
        get_op(OP_TYPE).infer([_pictures(block, desc.origin_shape)], attrs)
    except InferError as error:
        raise UsageError([replace(problem, code=CODE, port=where) for problem in error.problems]) from None


def _pictures(block: AippOp, shape: Shape) -> TensorDesc:
    """What an input of that shape takes instead."""
    return TensorDesc(block.images_shape(shape), DType.UINT8, Format.NHWC, Format.NHWC)


def _insert(graph: Graph, tensor: Tensor, block: AippOp, context: PassContext) -> None:
    made, shape = tensor.desc, tensor.desc.origin_shape
    attrs = {**block.attrs(shape), "dst_type": made.dtype}
    tensor.desc = _pictures(block, shape)
    first = graph.nodes[0] if graph.nodes else None
    node = graph.add_node(OP_TYPE, [tensor], attrs, f"aipp_{tensor.name}", before=first)
    graph.replace_uses(tensor, node.output, keep=[node])
    pictures = f"{attrs['input_format']} {list(tensor.desc.origin_shape)}"
    context.record.note(node.name, f"{block.place}: input '{tensor.name}' takes pictures {pictures}, not {made}")
    context.record.effect_times += 1
