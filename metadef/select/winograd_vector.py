"""Tiles of Winograd's transforms on the vector cores: strips that fit UB, in runs, judged by the pipe engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from metadef.cost.run import run_kernel
from metadef.cost.winograd_phases import input_kernel, output_kernel
from metadef.cost.winograd_view import PhaseShape, input_buffers, output_buffers
from metadef.error import TargetError
from metadef.kernel import Kernel, VectorTile
from metadef.select.buffers import OnChip
from metadef.target import Target

_RUN_LENGTHS = (1, 2, 4, 8, 16)


def choose_transform(
    kernel: Kernel, shape: PhaseShape, target: Target, cores: int, *, is_input: bool
) -> tuple[VectorTile, int, int]:
    """(tile, strips of a row, cores) of a transform: the fewest cycles by the pipe engine.

    Raises:
        TargetError: not even one tile fits UB.
    """
    best: tuple[int, VectorTile, int, int] | None = None
    for cut, tile, used in _vector_options(kernel, shape, target, cores, is_input):
        build = input_kernel if is_input else output_kernel
        cycles = run_kernel(build(kernel, cut, tile, used), target).cycles
        if best is None or cycles < best[0]:
            best = cycles, tile, cut.strips, used
    if best is None:
        room = target.buffer_bytes["UB"]
        raise TargetError(
            f"a tile of Winograd's transform does not fit {target.soc}", expected=f"within {room} bytes of UB"
        )
    return best[1:]


def _vector_options(
    kernel: Kernel, shape: PhaseShape, target: Target, cores: int, is_input: bool
) -> Iterator[tuple[PhaseShape, VectorTile, int]]:
    """(strips, tile, cores) that fit: the widest strips and half of them, in runs of several lengths."""
    tried = 0
    for strips in dict.fromkeys(_pieces(shape.columns, _pieces(shape.columns, count)) for count in _counts(shape)):
        cut = replace(shape, strips=strips)
        units = cut.input_units if is_input else cut.output_units
        elements = shape.planes * cut.strip_columns * shape.c0_in if is_input else shape.m**2 * cut.strip_columns * 16
        used = min(cores, units)
        fits = False
        for length in _RUN_LENGTHS:
            chip = _place(kernel, cut, length, target, is_input)
            if length > _pieces(units, used) or not chip.fits:
                break
            fits = True
            yield cut, VectorTile(units, elements, length, True, tuple(chip.buffers)), used
        tried += fits
        if tried == 2:
            return


def _counts(shape: PhaseShape) -> Iterator[int]:
    count = 1
    while count < shape.columns:
        yield count
        count *= 2
    yield shape.columns


def _place(kernel: Kernel, shape: PhaseShape, length: int, target: Target, is_input: bool) -> OnChip:
    """UB of a transform: what streams in and out twice, bias and scratch once."""
    chip = OnChip(target)
    loaded, stored, scratch = input_buffers(shape) if is_input else output_buffers(shape)
    chip.stream("pixels" if is_input else "sums", loaded * length, 2)
    chip.stream("planes" if is_input else "result", stored * length, 2)
    if not is_input:
        for slot, item in enumerate(kernel.fused):
            desc = kernel.inputs[item.operand] if item.operand is not None else None
            if desc is not None and desc.elements == kernel.outputs[0].elements:
                chip.stream(f"operand{slot}", stored * length, 2)
        if len(kernel.inputs) > 2 and (bias := kernel.inputs[2]) is not None:
            chip.take("bias", "UB", bias.payload_bytes)
    chip.take("scratch", "UB", scratch * length)
    return chip


def _pieces(count: int, by: int) -> int:
    return -(-count // by)
