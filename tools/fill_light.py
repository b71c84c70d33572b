"""Give the architectures that ship in the onnx package real-looking weights: seeded, and calibrated layer by layer.

The package's light models make every weight with ConstantOfShape, so a transposed or permuted weight goes unseen.
`fill` draws random ones and walks the graph once with a few pictures: BatchNormalization takes the statistics of its
input, layers without one are scaled to unit output variance, and the last layer is scaled until the pictures'
logits differ clearly. Outputs then depend on the picture and on every layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnx_writer import IR_VERSION

Arrays = dict[str, np.ndarray]
LOGIT_SPREAD = 1.5  # standard deviation of a class's logit over the pictures
LAYERS = ("Conv", "Gemm")


def light_model_names() -> list[str]:
    """Names of the light models in the installed onnx package."""
    return sorted(path.stem.removeprefix("light_") for path in _light_folder().glob("light_*.onnx"))


def fill(name: str, pictures: Sequence[np.ndarray], seed: int) -> onnx.ModelProto:
    """The light model `name` with drawn weights; `pictures` are two or more inputs to calibrate on.

    The opset stays the file's own (9); weights become plain initializers and are inputs no more.
    Raises ValueError where no light model has that name.
    """
    path = _light_folder() / f"light_{name}.onnx"
    if not path.exists():
        raise ValueError(f"the onnx package has no light model {name!r}; it has {', '.join(light_model_names())}")
    model = onnx.load(path)
    filler = Filler(model, np.random.default_rng(seed))
    filler.calibrate(pictures)
    return filler.result()


class Filler:
    """One light model on its way to full weights."""

    def __init__(self, model: onnx.ModelProto, rng: np.random.Generator):
        self.model, self.rng, graph = model, rng, model.graph
        self.weights: Arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        makers = [n for n in graph.node if n.op_type == "ConstantOfShape" and n.input[0] in self.weights]
        self.drawn = {n.output[0]: tuple(int(d) for d in self.weights[n.input[0]]) for n in makers}
        self.nodes = [n for n in graph.node if n.output[0] not in self.drawn]
        self.reshaped = {
            n.output[0]: n.input[0] for n in self.nodes if n.op_type == "Reshape" and n.input[0] in self.drawn
        }
        self.input = next(value.name for value in graph.input if value.name not in self.weights)
        self.normalised = any(n.op_type == "BatchNormalization" for n in self.nodes)
        self.last = [n for n in self.nodes if n.op_type in LAYERS][-1]
        self.summed = {name for n in self.nodes if n.op_type in ("Sum", "Add") for name in n.input}
        for weight, shape in self.drawn.items():
            self.weights[weight] = rng.standard_normal(shape).astype(np.float32)

    def calibrate(self, pictures: Sequence[np.ndarray]) -> None:
        """Walk the graph in order with all pictures; each node's weights are set before its outputs are computed."""
        rules: dict[str, Callable[[onnx.NodeProto, list[Arrays]], None]] = {
            "BatchNormalization": self._set_norm,
            **dict.fromkeys(LAYERS, self._set_layer),
        }
        values: list[Arrays] = [{self.input: picture} for picture in pictures]
        left = {name: sum(name in n.input for n in self.nodes) for n in self.nodes for name in n.output}
        softmax = next((n for n in reversed(self.nodes) if n.op_type == "Softmax"), None)
        for node in self.nodes:
            rules.get(node.op_type, self._set_free)(node, values)
            if node is softmax:
                self._spread_logits(node.input[0], values)
            for held, outputs in zip(values, self._run(node, values)):
                held.update(outputs)
            self._forget(node, values, left)

    def result(self) -> onnx.ModelProto:
        graph, used = self.model.graph, {name for n in self.nodes for name in n.input}
        weights = [numpy_helper.from_array(np.ascontiguousarray(v), k) for k, v in self.weights.items() if k in used]
        inputs = [value for value in graph.input if value.name == self.input]
        filled = helper.make_graph(self.nodes, graph.name, inputs, list(graph.output), weights)
        model = helper.make_model(filled, opset_imports=list(self.model.opset_import), ir_version=IR_VERSION)
        onnx.checker.check_model(model)
        return model

    def _run(self, node: onnx.NodeProto, values: list[Arrays]) -> list[Arrays]:
        names = [name for name in dict.fromkeys(node.input) if name]
        feeds = [
            {name: self.weights[name] if name in self.weights else held[name] for name in names} for held in values
        ]
        return run_node(node, feeds, self.model.opset_import[0].version)

    def _forget(self, node: onnx.NodeProto, values: list[Arrays], left: dict[str, int]) -> None:
        for name in dict.fromkeys(node.input):
            if name in left:
                left[name] -= 1
                if left[name] == 0:
                    for held in values:
                        held.pop(name, None)

    def _set_norm(self, node: onnx.NodeProto, values: list[Arrays]) -> None:
        x, scale, shift, mean, variance = node.input
        seen = np.concatenate([held[x] for held in values])
        # Branches that end in a sum are kept small: deep residual nets of full-size random branches are chaotic.
        low, high = (0.2, 0.6) if node.output[0] in self.summed else (0.6, 1.4)
        size = self.weights[scale].shape
        self.weights[scale] = self.rng.uniform(low, high, size).astype(np.float32)
        self.weights[shift] = (0.3 * self.rng.standard_normal(size)).astype(np.float32)
        self.weights[mean] = seen.mean((0, 2, 3))
        self.weights[variance] = np.maximum(seen.var((0, 2, 3)), np.float32(1e-6))

    def _set_layer(self, node: onnx.NodeProto, values: list[Arrays]) -> None:
        weight, bias = node.input[1], node.input[2] if len(node.input) > 2 else None
        if weight not in self.drawn and weight not in self.reshaped:
            return
        if bias:
            self.weights[bias] = np.zeros_like(self.weights[bias])
        seen = np.concatenate([out[node.output[0]] for out in self._run(node, values)])
        axes = (0, *range(2, seen.ndim))
        gain = 1 / max(float((seen - seen.mean(axes, keepdims=True)).std()), 1e-6)
        self._scale(weight, gain, values)
        if bias and (node is self.last or not self.normalised):
            spread = 0.2 * self.rng.standard_normal(seen.shape[1])
            self.weights[bias] = (spread - gain * seen.mean(axes)).astype(np.float32)

    def _set_free(self, node: onnx.NodeProto, values: list[Arrays]) -> None:
        """Drawn factors near one and drawn summands near zero, for weights that no layer owns."""
        for name in set(node.input) & set(self.drawn):
            factor = node.op_type in ("Mul", "Unsqueeze")
            self.weights[name] = (1 + 0.3 * self.weights[name]) if factor else 0.1 * self.weights[name]

    def _spread_logits(self, logits: str, values: list[Arrays]) -> None:
        """Rescale the last layer; what lies between it and softmax (pooling, relu, reshape) is homogeneous."""
        seen = np.stack([held[logits] for held in values])
        gain = LOGIT_SPREAD / max(float((seen - seen.mean(0)).std()), 1e-6)
        for name in self.last.input[1:]:
            self._scale(name, gain, values)
        for held in values:
            held[logits] = held[logits] * np.float32(gain)

    def _scale(self, weight: str, gain: float, values: list[Arrays]) -> None:
        """Scale a weight; one that reaches its layer through a Reshape is scaled on both sides of it."""
        for held in values:
            if weight in held:
                held[weight] = held[weight] * np.float32(gain)
        origin = self.reshaped.get(weight, weight)
        self.weights[origin] = self.weights[origin] * np.float32(gain)


def run_node(node: onnx.NodeProto, feeds: Sequence[Arrays], opset: int) -> list[Arrays]:
    """Outputs by name of one node for each set of feeds; through onnxruntime, or onnx's slow reference without it."""
    names = list(feeds[0])
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(feeds[0][name].dtype), feeds[0][name].shape)
        for name in names
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "one", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)
    run = _runner(model)
    return [dict(zip((out.name for out in outputs), run(feed))) for feed in feeds]


def _runner(model: onnx.ModelProto) -> Callable[[Arrays], list[np.ndarray]]:
    try:
        import onnxruntime
    except ImportError:
        return _reference(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, feed)


def _reference(model: onnx.ModelProto) -> Callable[[Arrays], list[np.ndarray]]:
    node = model.graph.node[0]
    if node.op_type == "BatchNormalization":
        # onnx.reference takes the batch's own statistics for opset 9, where the file means the stored ones.
        epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
        return lambda feed: [_normalise(*(feed[name] for name in node.input), epsilon)]
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(model)
    return lambda feed: evaluator.run(None, feed)


def _normalise(
    x: np.ndarray, scale: np.ndarray, shift: np.ndarray, mean: np.ndarray, variance: np.ndarray, epsilon: float
) -> np.ndarray:
    gain = scale / np.sqrt(variance + np.float32(epsilon))
    return (x - mean[:, None, None]) * gain[:, None, None] + shift[:, None, None]


def _light_folder() -> Path:
    import onnx.backend.test

    return Path(onnx.backend.test.__file__).parent / "data" / "light"
