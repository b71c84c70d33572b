"""Graphs as text for the tests of passes: parse, run some passes, evaluate before and after on random data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from metadef.graph import Graph
from metadef.passes import PIPELINE, PassOptions, PassReport
from metadef.rewrite import run_passes
from metadef.target import load_target
from metadef.text import parse_graph

RunPasses = Callable[..., tuple[Graph, PassReport]]


@pytest.fixture(scope="session")
def run() -> RunPasses:
    """`run(text, names, soc, precision)` parses and runs the named passes (all if empty): graph and report."""

    def go(text: str, names: str = "", soc: str = "Ascend910B3", precision: str = "fp16") -> tuple[Graph, PassReport]:
        wanted = [name.strip() for name in names.split(",") if name.strip()]
        by_name = {item.name: item for item in PIPELINE}
        passes = [by_name[name] for name in wanted] if wanted else list(PIPELINE)
        graph = parse_graph(text)
        options = PassOptions(precision=precision, check=True)
        return graph, run_passes(passes, graph, load_target(soc), options)

    return go


@pytest.fixture
def feeds(rng: np.random.Generator) -> Callable[[Graph], dict[str, np.ndarray]]:
    """Random feeds of a graph: normal floats, small integers."""

    def make(graph: Graph) -> dict[str, np.ndarray]:
        result = {}
        for tensor in graph.inputs:
            shape, dtype = tensor.desc.origin_shape, tensor.desc.dtype
            value = rng.standard_normal(shape) if dtype.is_float else rng.integers(-5, 5, shape)
            result[tensor.name] = np.asarray(value).astype(dtype.numpy)
        return result

    return make
