"""Random networks with branches and loops: values against ONNX Runtime, reuse against no reuse, bit for bit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from metadef.compiler import CompileOptions, compile_model
from npusim import InferenceSession

ort = pytest.importorskip("onnxruntime")

SHAPE = (3, 20)
_BINARY = ("Add", "Sub", "Mul", "Max", "Min")
_UNARY = ("Neg", "Abs", "Relu", "Tanh", "Sigmoid")


class Maker:
    """Writes nodes over values of one shape; names are unique in the whole model."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.count = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def value(self, values: list[str]) -> str:
        return values[int(self.rng.integers(len(values)))]

    def block(self, nodes: list[onnx.NodeProto], values: list[str], flags: list[str], depth: int) -> None:
        """Some nodes behind one another; ``values`` and ``flags`` grow."""
        for _ in range(int(self.rng.integers(1, 5))):
            kind = self.rng.random()
            if kind < 0.25 and depth:
                self.branch(nodes, values, flags, depth)
            elif kind < 0.45 and depth:
                self.loop(nodes, values, flags, depth)
            elif kind < 0.75:
                made = self.name("v")
                pair = [self.value(values), self.value(values)]
                nodes.append(helper.make_node(self.rng.choice(_BINARY), pair, [made]))
                values.append(made)
            else:
                made = self.name("v")
                nodes.append(helper.make_node(self.rng.choice(_UNARY), [self.value(values)], [made]))
                values.append(made)

    def side(self, values: list[str], flags: list[str], depth: int, outputs: int) -> onnx.GraphProto:
        nodes: list[onnx.NodeProto] = []
        inner = list(values)
        self.block(nodes, inner, list(flags), depth - 1)
        return self.closed(nodes, inner, outputs, [])

    def closed(
        self, nodes: list[onnx.NodeProto], values: list[str], outputs: int, inputs: list[onnx.ValueInfoProto]
    ) -> onnx.GraphProto:
        """A subgraph whose outputs are fresh names of random values."""
        infos = []
        for _ in range(outputs):
            made = self.name("r")
            nodes.append(helper.make_node("Identity", [self.value(values[-4:])], [made]))
            infos.append(helper.make_tensor_value_info(made, TensorProto.FLOAT, SHAPE))
        return helper.make_graph(nodes, self.name("g"), inputs, infos)

    def branch(self, nodes: list[onnx.NodeProto], values: list[str], flags: list[str], depth: int) -> None:
        count = int(self.rng.integers(1, 3))
        made = [self.name("v") for _ in range(count)]
        sides = {key: self.side(values, flags, depth, count) for key in ("then_branch", "else_branch")}
        nodes.append(helper.make_node("If", [self.value(flags)], made, **sides))
        values += made

    def loop(self, nodes: list[onnx.NodeProto], values: list[str], flags: list[str], depth: int) -> None:
        carried = int(self.rng.integers(1, 4))
        number, go = self.name("i"), self.name("c")
        states = [self.name("s") for _ in range(carried)]
        inputs = [helper.make_tensor_value_info(number, TensorProto.INT64, [])]
        inputs.append(helper.make_tensor_value_info(go, TensorProto.BOOL, []))
        inputs += [helper.make_tensor_value_info(state, TensorProto.FLOAT, SHAPE) for state in states]
        body: list[onnx.NodeProto] = []
        inner = [*values, *states]
        self.block(body, inner, [*flags, go], depth - 1)
        stays = self.name("o")
        graph = self.closed(body, inner, carried, inputs)
        early = self.rng.random() < 0.4
        graph.node.append(
            helper.make_node("And", [go, self.value(flags)], [stays])
            if early
            else helper.make_node("Identity", [go], [stays])
        )
        graph.output.insert(0, helper.make_tensor_value_info(stays, TensorProto.BOOL, []))
        made = [self.name("v") for _ in range(carried)]
        starts = [self.value(values) for _ in range(carried)]
        nodes.append(helper.make_node("Loop", ["trips", "true", *starts], made, body=graph))
        values += made

    def model(self) -> onnx.ModelProto:
        nodes: list[onnx.NodeProto] = []
        values = ["x", "w"]
        self.loop(nodes, values, ["p", "q"], 2)
        self.block(nodes, values, ["p", "q"], 3)
        outputs = list(dict.fromkeys([values[-1], self.value(values[2:])]))
        graph = helper.make_graph(
            nodes,
            "fuzz",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in ("x", "w")]
            + [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("p", "q")]
            + [helper.make_tensor_value_info("trips", TensorProto.INT64, [])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in outputs],
            [helper.make_tensor("true", TensorProto.BOOL, [], [True])],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("seed", [*range(10), 136, 146])
def test_random_control_flow(seed: int) -> None:
    maker = Maker(seed)
    model = maker.model()
    oracle = ort.InferenceSession(model.SerializeToString())
    sessions = [
        InferenceSession(
            compile_model(model, CompileOptions(precision="origin", reuse=reuse, inplace=reuse, check=True)).model
        )
        for reuse in (True, False)
    ]
    rng = np.random.default_rng(seed)
    for trips, p, q in ((0, True, False), (1, False, True), (3, True, True), (2, False, False)):
        feeds = {
            **{name: rng.standard_normal(SHAPE).astype(np.float32) for name in ("x", "w")},
            **{name: np.asarray(value) for name, value in (("p", p), ("q", q))},
            "trips": np.asarray(trips, np.int64),
        }
        known = {item.name for item in sessions[0].get_inputs()}
        results = []
        for session in sessions:
            session.loaded.device.poison_arena()
            results.append(session.run(None, {name: value for name, value in feeds.items() if name in known}))
        for ours, plain, wanted in zip(*results, oracle.run(None, feeds), strict=True):
            assert ours.tobytes() == plain.tobytes()
            np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)
