"""ONNX's backend interface, so that ONNX's own test-suite and its users can drive the simulated chip.

Models keep their own element types (precision ``origin``). A model is compiled at its first run with input shapes it
has not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.backend import base
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

from metadef.error import LabError, OperatorError
from npusim.session import InferenceSession, SessionOptions

_PARAMETER_RANK = 1
_CACHED_SHAPES = 16


class PreparedModel(base.BackendRep):
    """A model with the sessions compiled for the input shapes it has met."""

    def __init__(self, model: onnx.ModelProto, options: SessionOptions) -> None:
        self.model = model
        self.options = options
        preset = {item.name for item in model.graph.initializer}
        self.input_names = [item.name for item in model.graph.input if item.name not in preset]
        self._sessions: dict[tuple[tuple[int, ...], ...], InferenceSession] = {}

    def run(self, inputs: Any, **kwargs: Any) -> tuple[np.ndarray, ...]:
        """Outputs in the model's order. ``inputs`` is one array, a sequence in the model's order, or a dict by name.

        Operands that steer shapes (Reshape's ``shape``, Slice's ``starts``…) may be fed: where the model does not
        compile without their values, fed operands of rank 0 and 1 become constants of this one run.

        Raises:
            BackendIsNotSupposedToImplementIt: an operator, or a form of it, has no place to run.
            LabError: the model or the inputs are at fault.
        """
        feeds = self._feeds(inputs)
        key = tuple(array.shape for array in feeds.values())
        session = self._sessions.get(key)
        try:
            if session is None:
                session, feeds = self._compile(feeds)
            return tuple(session.run(None, feeds))
        except OperatorError as error:
            raise BackendIsNotSupposedToImplementIt(str(error)) from error

    def _feeds(self, inputs: Any) -> dict[str, np.ndarray]:
        if isinstance(inputs, dict):
            return {name: _as_array(value, name) for name, value in inputs.items()}
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        return {name: _as_array(value, name) for name, value in zip(self.input_names, inputs, strict=False)}

    def _compile(self, feeds: dict[str, np.ndarray]) -> tuple[InferenceSession, dict[str, np.ndarray]]:
        """A session for these shapes, and the feeds that are still its inputs."""
        try:
            session = InferenceSession(self.model, self._options(feeds))
        except LabError as refusal:
            return self._specialised(feeds, refusal)
        if len(self._sessions) >= _CACHED_SHAPES:
            self._sessions.pop(next(iter(self._sessions))).close()
        self._sessions[tuple(array.shape for array in feeds.values())] = session
        return session, feeds

    def _specialised(
        self, feeds: dict[str, np.ndarray], refusal: LabError
    ) -> tuple[InferenceSession, dict[str, np.ndarray]]:
        """A session for the values of the small operands, good for one run. Raises ``refusal`` if that fails too."""
        parameters = {
            name: array for name, array in feeds.items() if array.ndim <= _PARAMETER_RANK and array.dtype.kind in "biuf"
        }
        rest = {name: array for name, array in feeds.items() if name not in parameters}
        if not parameters:
            raise refusal
        try:
            return InferenceSession(self.model, replace(self._options(rest), values=parameters)), rest
        except LabError:
            raise refusal from None

    def _options(self, feeds: dict[str, np.ndarray]) -> SessionOptions:
        return replace(self.options, shapes={name: array.shape for name, array in feeds.items()})


class NpusimBackend(base.Backend):
    """The simulated chip as an ONNX backend. Extra keyword arguments are fields of :class:`SessionOptions`."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """The simulation runs on the host's CPU; it answers to "NPU" too."""
        return device.split(":")[0] in ("CPU", "NPU")

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model compiles for its declared shapes."""
        try:
            InferenceSession(model, SessionOptions(**{"precision": "origin", **kwargs})).close()
        except LabError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        return PreparedModel(model, SessionOptions(**{"precision": "origin", **kwargs}))

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[np.ndarray, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[np.ndarray, ...]:
        """Run a single node. ``opset_version`` (default: the newest the onnx package knows) gives its meaning."""
        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        arrays = [np.asarray(value) for value in ([inputs] if isinstance(inputs, np.ndarray) else inputs)]
        names = [name for name in node.input if name]
        operands = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in zip(names, arrays, strict=True)
        ]
        results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], node.op_type, operands, results)
        model = onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, opset)])
        )
        return cls.run_model(model, arrays, device, **kwargs)


def _as_array(value: Any, name: str) -> np.ndarray:
    """An array from what callers feed. Raises BackendIsNotSupposedToImplementIt for sequences and optionals."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if value is None or isinstance(value, list | tuple | onnx.SequenceProto | onnx.OptionalProto):
        raise BackendIsNotSupposedToImplementIt(f"input '{name}' is no tensor but a {type(value).__name__}")
    return np.asarray(value)


supports_device = NpusimBackend.supports_device
is_compatible = NpusimBackend.is_compatible
prepare = NpusimBackend.prepare
run_model = NpusimBackend.run_model
run_node = NpusimBackend.run_node
