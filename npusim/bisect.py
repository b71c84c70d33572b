"""Which compiler pass costs the accuracy: prefixes of the pipeline, computed by the operators' references.

The graph after some passes is computed in float32 with its own storage types and compared with the graph before any
pass in float64. No kernel, plan or device is involved, so a pass that is found is itself at fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metadef.compiler import CompileOptions, legal_graph
from metadef.debug import bisect_passes
from metadef.graph import Graph
from metadef.ops.evaluate import evaluate
from metadef.passes import PIPELINE, Pass, PassOptions
from npusim.difference import stored_distance
from npusim.feeds import FeedSpec, generate_feeds


@dataclass(frozen=True)
class Bisection:
    """``culprit`` is the first pass after which an output is farther off than ``limit`` ("" if none is).

    ``before`` and ``after`` are the worst relative L2 of the outputs without and with that pass; where there is no
    culprit, at the start and at the end of the pipeline.
    """

    limit: float
    culprit: str
    reason: str
    passes: int
    probes: int
    before: float
    after: float

    def as_json(self) -> dict[str, Any]:
        """Plain values for ``--json``."""
        return asdict(self)


def bisect_model(
    source: str | Path | bytes | Any,
    feeds: Mapping[str, np.ndarray] | None,
    options: CompileOptions,
    *,
    limit: float,
    seed: int = 0,
    passes: tuple[Pass, ...] = PIPELINE,
) -> Bisection:
    """Find the pass that moves an output by more than ``limit`` (relative L2).

    Args:
        feeds: inputs by name; generated from ``seed`` when None.

    Raises:
        UsageError: the feeds do not fit, or single precision alone is beyond the limit. OperatorError: the model has
            operators that only the host knows.
    """
    chosen = [item for item in passes if item.name not in options.disabled_passes]
    pass_options = PassOptions(precision=options.precision, disabled=options.disabled_passes)
    start, target = legal_graph(source, options)
    specs = [FeedSpec.of(tensor.name, tensor.desc) for tensor in start.inputs]
    fed = feeds if feeds is not None else generate_feeds(specs, seed)
    descs = {name: tensor.desc for name, tensor in zip(start.output_names, start.outputs, strict=True)}
    wanted = evaluate(start, fed, compute=np.float64)
    errors: list[float] = []

    def error(graph: Graph) -> float:
        got = evaluate(graph, fed, overflow=target.overflow)
        errors.append(max(stored_distance(got[name], value, descs[name]) for name, value in wanted.items()))
        return errors[-1]

    culprit = bisect_passes(
        lambda: legal_graph(source, options)[0], lambda graph: error(graph) <= limit, target, pass_options, chosen
    )
    good, bad = ([item for item in errors if (item <= limit) is side] for side in (True, False))
    if culprit is None:
        return Bisection(limit, "", "", len(chosen), len(errors), errors[0], errors[-1])
    reason = next(item.reason for item in chosen if item.name == culprit)
    # The search ends with the two prefixes around the culprit, and each side's last probe is one of them.
    return Bisection(limit, culprit, reason, len(chosen), len(errors), good[-1], bad[-1])


def print_bisection(found: Bisection, console: Any) -> None:
    """Print the answer; fits 110 columns."""
    tried = f"{found.probes} graphs computed, {found.passes} passes, limit {found.limit:g}"
    if not found.culprit:
        console.print(f"no pass moves an output beyond the limit: {found.after:.2e} after all of them\n  ({tried})")
        return
    console.print(f"[bold]{found.culprit}[/bold]: {found.reason}", highlight=False)
    console.print(
        f"  relative L2 of the worst output {found.before:.2e} -> {found.after:.2e} ({tried})", highlight=False
    )
    remedy = f"--disable {found.culprit}, and `npusim diff MODEL --b-disable {found.culprit}`"
    if found.culprit in {item.name for item in PIPELINE if item.required}:
        remedy = "--precision origin, or a larger --limit: the pass itself is needed"
    console.print(f"  try: {remedy}", highlight=False)
