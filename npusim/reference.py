"""What onnxruntime makes of a model: the values that ours are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metadef.error import UsageError
from metadef.graph import Graph
from metadef.op import Attrs, FormatRule
from metadef.ops.aipp import picture_reference


def picture_attrs(graph: Graph) -> dict[str, Attrs]:
    """Attributes of AIPP, by the name of the input that takes pictures for it, in a compiled graph."""
    found: dict[str, Attrs] = {}
    for tensor in graph.inputs:
        for reader, _ in tensor.uses:
            if reader.opdef is not None and reader.opdef.formats is FormatRule.PICTURE:
                found[tensor.name] = reader.attrs
    return found


def run_onnxruntime(
    source: Any, feeds: Mapping[str, np.ndarray], pictures: Mapping[str, Attrs] | None = None
) -> dict[str, np.ndarray]:
    """All values of the model's main graph, and its outputs, by name; bfloat16 is computed in float32.

    Inputs in ``pictures`` are fed with what AIPP of these attributes makes of the pictures, in the model's own type.

    Raises:
        UsageError: onnxruntime is not installed, or refuses the model or the feeds.
    """
    try:
        import onnxruntime  # noqa: F401
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
    feeds = dict(feeds)
    for item in model.graph.input:
        if pictures and item.name in pictures:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
            feeds[item.name] = picture_reference([feeds[item.name]], pictures[item.name]).astype(dtype)
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
    try:
        return dict(zip(names, exact_session(extended.SerializeToString()).run(names, feeds), strict=True))
    except Exception as error:  # its errors have no common base
        text = str(error).strip().splitlines()[0]
        hint = "compile the model and compare the .om: layer by layer, without onnxruntime"
        raise UsageError("onnxruntime does not run this model", got=text, hint=hint) from error


def exact_session(model: bytes | str, threads: int = 0) -> Any:
    """A quiet onnxruntime session whose products of bytes are exact sums, for a serialised model or a file.

    On x86-64 without VNNI its usual kernels for unsigned by signed bytes saturate pairs of products at 16 bits. The
    exact ones rewrite the second operand and its zero point; where nodes share one, or the first operand is signed,
    onnxruntime fails and the usual ones are taken.
    """
    try:
        return _session(model, threads, exact=True)
    except Exception:  # its errors have no common base; what is wrong with the model itself is raised again
        return _session(model, threads, exact=False)


def _session(model: bytes | str, threads: int, exact: bool) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, threads
    options.add_session_config_entry("session.x64quantprecision", str(int(exact)))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
