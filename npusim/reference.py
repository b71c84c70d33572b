"""What onnxruntime makes of a model: the values that ours are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metadef.error import UsageError


def run_onnxruntime(source: Any, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All values of the model's main graph, and its outputs, by name; bfloat16 is computed in float32.

    Raises:
        UsageError: onnxruntime is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError(
            "comparing needs onnxruntime, which is not installed",
            hint="pip install 'npusim[compare]'",
        ) from error
    import onnx

    from npusim.onnx_bfloat import uses_bfloat, without_bfloat

    model = source
    if isinstance(source, str | Path):
        model = onnx.load(str(source))
    elif isinstance(source, bytes):
        model = onnx.load_from_string(source)
    names = [item.name for item in model.graph.output]
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    known = set(names)
    for node in model.graph.node:
        for name in node.output:
            if name and name not in known:
                known.add(name)
                names.append(name)
                extended.graph.output.append(onnx.ValueInfoProto(name=name))
    if uses_bfloat(extended):
        extended = without_bfloat(extended)
        feeds = {name: _widened(np.asarray(value)) for name, value in feeds.items()}
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    runner = onnxruntime.InferenceSession(extended.SerializeToString(), quiet, providers=["CPUExecutionProvider"])
    return dict(zip(names, runner.run(names, dict(feeds)), strict=True))


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
