"""Small ONNX files, whole and broken, for tests of the command line and of studies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper


def save(path: Path, nodes: list[NodeProto], *, shape: tuple[int, ...] = (2, 3), constants: dict | None = None) -> Path:
    """A model x -> y of the given nodes, unchecked."""
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def small_model(path: Path, *, op_type: str = "Relu") -> Path:
    """x [2, 3] -> Add(x, x) -> an element-wise operator -> y."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["twice"], "double"),
        helper.make_node(op_type, ["twice"], ["y"], "last"),
    ]
    return save(path, nodes)


def odd_rows_model(path: Path) -> Path:
    """A product with 77 columns, layer norm and softmax over them: rows of 154 bytes in float16."""
    rng = np.random.default_rng(7)
    width = 77
    constants = {
        "w": rng.standard_normal((64, width)).astype(np.float32) / 8,
        "scale": rng.standard_normal(width).astype(np.float32),
        "shift": rng.standard_normal(width).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], "product"),
        helper.make_node("LayerNormalization", ["product", "scale", "shift"], ["normal"], "norm", axis=-1),
        helper.make_node("Softmax", ["normal"], ["y"], "softmax", axis=-1),
    ]
    return save(path, nodes, shape=(512, 64), constants=constants).resolve()


def broken_models(folder: Path) -> dict[str, Path]:
    """Files that must be refused, by what is wrong with them."""
    relu = lambda source, result, name="r": helper.make_node("Relu", [source], [result], name)  # noqa: E731
    whole = small_model(folder / "whole.onnx").read_bytes()
    files = {"missing": folder / "missing.onnx"}
    for name, data in (("truncated", whole[: len(whole) // 2]), ("empty", b""), ("text", b"this is no model\n" * 9)):
        files[name] = folder / f"{name}.onnx"
        files[name].write_bytes(data)
    files["unknown operator"] = small_model(folder / "unknown.onnx", op_type="Rleu")
    cycle = [helper.make_node("Add", ["x", "b"], ["a"], "first"), relu("a", "b", "second"), relu("b", "y", "third")]
    files["cycle"] = save(folder / "cycle.onnx", cycle)
    files["duplicate"] = save(folder / "duplicate.onnx", [relu("x", "y", "one"), relu("x", "y", "two")])
    files["external"] = _external(folder / "external.onnx")
    return files


def _external(path: Path) -> Path:
    """A model whose weights file is gone."""
    save(path, [helper.make_node("MatMul", ["x", "w"], ["y"], "m")], constants={"w": np.ones((3, 400), np.float32)})
    model = onnx.load(str(path))
    onnx.save(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    (path.parent / "weights.bin").unlink()
    return path
