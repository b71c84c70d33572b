"""A few lines over onnx.helper with which the tools write their models: one output a node, layer paths as names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Dims = Sequence[int | str]
OPSET = 17
IR_VERSION = 8


class GraphWriter:
    """Collects nodes and weights in order; `save` checks the model and writes it under opset 17, IR 8."""

    def __init__(self, name: str):
        self.name = name
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, dims: Dims, dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, dims))
        return name

    def output(self, name: str, dims: Dims, dtype: int = TensorProto.FLOAT) -> str:
        self.outputs.append(helper.make_tensor_value_info(name, dtype, dims))
        return name

    def weight(self, name: str, value: np.ndarray) -> str:
        if name in self.weights:
            raise ValueError(f"weight {name} is written twice")
        self.weights[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def node(self, op: str, inputs: Sequence[str], path: str, *, out: str | None = None, **attributes: Any) -> str:
        """Append a node named by its layer path; the name of its output."""
        out = out or f"{path}/out"
        self.nodes.append(helper.make_node(op, list(inputs), [out], name=path, **attributes))
        return out

    def model(self, notes: dict[str, str] | None = None) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, list(self.weights.values()))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        helper.set_model_props(model, notes or {})
        onnx.checker.check_model(model, full_check=True)
        return model

    def save(self, path: Path, notes: dict[str, str] | None = None) -> None:
        save_model(self.model(notes), path)


def save_model(model: onnx.ModelProto, path: Path) -> None:
    """Write a model by way of a temporary name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    part.write_bytes(model.SerializeToString(deterministic=True))
    part.replace(path)
