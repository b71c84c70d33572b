"""Selection: the Ascend graph becomes a Schedule whose steps carry kernels with tiles that fit the chip."""

from __future__ import annotations

from metadef.graph import Graph
from metadef.schedule import Schedule
from metadef.select.kernels import KernelChooser
from metadef.select.steps import build_schedule
from metadef.target import Target

__all__ = ["select"]


def select(graph: Graph, target: Target, conv: str = "direct") -> Schedule:
    """Choose kernel, algorithm, tile, cores and workspace of every node; the order of steps is the graph's.

    ``conv`` is one of :data:`metadef.winograd.CONV_CHOICES`.

    Raises:
        TargetError: the chip cannot run an operator (such as an fp32 product on 310P), or no tile fits.
    """
    weights_bytes = sum(tensor.desc.payload_bytes for tensor in graph.constants())
    return build_schedule(graph, target.soc, KernelChooser(target, weights_bytes, conv))
