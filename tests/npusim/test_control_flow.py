"""If, Loop and Scan as device programs: values against ONNX Runtime, traces, plans, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, parser

from metadef.compiler import CompileOptions, compile_model
from metadef.error import DeviceFault, InferError
from metadef.model import load_om, save_om
from npusim import InferenceSession, SessionOptions
from npusim.explain import Explainer

ort = pytest.importorskip("onnxruntime")

NESTED = """
net (float[2,3] x, int64 n, bool flip) => (float[2,3] y, float[2,3] z) {
    true = Constant <value = bool {1}> ()
    k = Neg(x)
    y, z = Loop (n, true, x, k) <
        body = b (int64 i, bool c, float[2,3] a, float[2,3] s) => (go, u, v) {
            two = Constant <value = int64 {2}> ()
            half = Constant <value = float {0.5}> ()
            odd = Mod(i, two)
            isodd = Cast <to = 9> (odd)
            u = If (isodd) <
                then_branch = odd () => (p) {
                    p = If (flip) <
                        then_branch = f () => (q) { q = Sub(a, k) },
                        else_branch = g () => (r) { r = Abs(a) }>
                },
                else_branch = even () => (w) { t = Mul(a, half)  w = Add(t, x) }>
            v = Add(s, a)
            go = Identity(c)
        }>
}"""
EARLY = """
net (float[4] x, float bound) => (float[4] y, float sum) {
    most = Constant <value = int64 {50}> ()
    true = Constant <value = bool {1}> ()
    zero = Constant <value = float {0}> ()
    y, sum = Loop (most, true, x, zero) <
        body = b (int64 i, bool c, float[4] a, float s) => (go, b2, s2) {
            b2 = Add(a, x)
            one = ReduceSum <keepdims = 0> (b2)
            s2 = Add(s, one)
            go = Less(s2, bound)
        }>
}"""
SWAP = """
net (float[3] x, float[3] w, int64 n) => (float[3] a, float[3] b, float[3] c) {
    true = Constant <value = bool {1}> ()
    a, b, c = Loop (n, true, x, w, x) <
        body = body (int64 i, bool go, float[3] p, float[3] q, float[3] r) => (stay, q2, p2, r2) {
            stay = Identity(go)  q2 = Identity(q)  p2 = Identity(p)  r2 = Add(r, p)
        }>
}"""
UNTIL = """
net (float[3] x) => (float[3] y) {
    true = Constant <value = bool {1}> ()
    y = Loop ("", true, x) <
        body = b (int64 i, bool c, float[3] a) => (go, b2) {
            five = Constant <value = float {5}> ()  two = Constant <value = float {2}> ()
            b2 = Mul(a, two)  m = ReduceMax <keepdims = 0> (b2)  go = Less(m, five)
        }>
}"""
SCAN = """
net (float[3] s0, float[3,5] x, float[5,3] w) => (float[3] s, float[3,5] ys, float[5,3] zs) {
    s, ys, zs = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
                      scan_output_axes = [1, 0], scan_output_directions = [0, 1],
                      body = b (float[3] a, float[3] p, float[3] q) => (o, y, z) {
        t = Mul(a, q)  o = Add(t, p)  y = Relu(o)  z = Sub(p, q)
    }> (s0, x, w)
}"""
STACKED = """
net (float[2] x) => (float[2] y, float[4,2] ys, int64[4] ns) {
    four = Constant <value = int64 {4}> ()  true = Constant <value = bool {1}> ()
    y, ys, ns = Loop (four, true, x) <
        body = b (int64 i, bool c, float[2] a) => (go, b2, row, number) {
            go = Identity(c)  b2 = Add(a, x)  row = Mul(b2, x)  number = Identity(i)
        }>
}"""
SIDES = """
net (float[2,3] x, bool c) => (float[2,3] y, float[2,3] z) {
    y, z = If (c) <
        then_branch = t () => (a, b) { a = Relu(x)  b = Identity(x) },
        else_branch = e () => (d, f) { d = Identity(x)  one = Constant <value = float[2,3] {1,2,3,4,5,6}> ()
                                       f = Identity(one) }>
}"""


def built(text: str) -> onnx.ModelProto:
    graph = parser.parse_graph(text.replace('""', "_absent"))
    for node in graph.node:
        node.input[:] = ["" if name == "_absent" else name for name in node.input]
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def whole(value: int) -> np.ndarray:
    return np.asarray(value, np.int64)


CASES: list[tuple[str, str, dict[str, Any]]] = [
    *(
        (f"nested {n} {flip}", NESTED, {"x": numbers(2, 3), "n": whole(n), "flip": np.asarray(flip)})
        for n in (0, 1, 5)
        for flip in (True, False)
    ),
    *(
        (f"early {bound}", EARLY, {"x": np.abs(numbers(4)), "bound": np.asarray(bound, np.float32)})
        for bound in (-1, 20, 1e9)
    ),
    *((f"swap {n}", SWAP, {"x": numbers(3), "w": numbers(3, seed=1), "n": whole(n)}) for n in (0, 1, 2, 3)),
    ("until", UNTIL, {"x": np.abs(numbers(3)) + 0.1}),
    ("scan", SCAN, {"s0": numbers(3), "x": numbers(3, 5, seed=1), "w": numbers(5, 3, seed=2)}),
    ("stacked", STACKED, {"x": numbers(2)}),
    *((f"sides {c}", SIDES, {"x": numbers(2, 3), "c": np.asarray(c)}) for c in (True, False)),
]


def expected(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ort.InferenceSession(model.SerializeToString()).run(None, feeds)


@pytest.mark.parametrize(("text", "feeds"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
@pytest.mark.parametrize("checked", [False, True], ids=["", "checked"])
def test_values_are_those_of_onnx_runtime(text: str, feeds: dict[str, np.ndarray], checked: bool) -> None:
    model = built(text)
    session = InferenceSession(model, SessionOptions(precision="origin", checked=checked))
    for _ in range(2):  # what a run leaves in memory must not matter
        for got, want in zip(session.run(None, feeds), expected(model, feeds), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("text", "feeds"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_reuse_changes_no_bit(text: str, feeds: dict[str, np.ndarray]) -> None:
    results = []
    for reuse in (True, False):
        options = CompileOptions(precision="origin", reuse=reuse, inplace=reuse, check=True)
        session = InferenceSession(compile_model(built(text), options).model)
        session.loaded.device.poison_arena()
        results.append([value.tobytes() for value in session.run(None, feeds)])
    assert results[0] == results[1]


def test_the_trace_lists_what_ran_and_the_profile_times_it() -> None:
    session = InferenceSession(built(NESTED), SessionOptions(precision="origin"))
    feeds = {"x": numbers(2, 3), "flip": np.asarray(True)}
    cycles = []
    for trips in (0, 1, 5):
        session.run(None, {**feeds, "n": whole(trips)})
        names = [session.program.tasks[at].name for at in session.trace]
        inside = [name for name in names if "Add_v" in name]
        assert len(inside) == trips
        assert [row.task for row in session.profile.tasks] == list(session.trace)
        cycles.append(session.profile.cycles)
    assert cycles[0] < cycles[1] < cycles[2]
    assert cycles[2] - cycles[1] > 3 * (cycles[1] - cycles[0]) / 2


def test_an_explanation_says_which_path_it_timed() -> None:
    explainer = Explainer(built(NESTED), SessionOptions(precision="origin"))
    (assumed,) = explainer.network()["assumed"]
    assert "first side" in assumed and "one turn" in assumed
    explainer.session.run(None, {"x": numbers(2, 3), "flip": np.asarray(True), "n": whole(2)})
    assert explainer.network()["assumed"] == []


def test_a_model_file_keeps_the_jumps(tmp_path: Path) -> None:
    feeds = {"x": numbers(2, 3), "n": whole(3), "flip": np.asarray(False)}
    made = compile_model(built(NESTED), CompileOptions(precision="origin")).model
    path = save_om(made, tmp_path / "loop.om")
    loaded = load_om(path)
    assert loaded.programs == made.programs
    one, other = (InferenceSession(model).run(None, feeds) for model in (made, loaded))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))
    shown = [[[node.op_type for node in graph.nodes] for graph in model.graph.graphs()] for model in (loaded, made)]
    assert shown[0] == shown[1] and len(shown[0]) == 7


def test_layers_are_yielded_once_an_iteration() -> None:
    session = InferenceSession(built(SWAP), SessionOptions(precision="origin"))
    runs = list(session.run_layers({"x": numbers(3), "w": numbers(3, seed=1), "n": whole(4)}))
    assert sum("Add_r2" in run.task.name for run in runs) == 4
    assert not any(run.task.is_jump for run in runs)


GROWING = """
net (float[2] x, int64 n) => (float[2] y, float[?,2] ys) {
    true = Constant <value = bool {1}> ()
    y, ys = Loop (n, true, x) <
        body = b (int64 i, bool c, float[2] a) => (go, b2, row) { go = Identity(c)  b2 = Add(a, x)  row = Neg(a) }>
}"""
SHAPES = """
net (float[2] x, int64 n) => (float[?] y) {
    true = Constant <value = bool {1}> ()
    y = Loop (n, true, x) <
        body = b (int64 i, bool c, float[?] a) => (go, b2) { go = Identity(c)  b2 = Concat <axis = 0> (a, x) }>
}"""
DIFFERENT = """
net (float[2,3] x, bool c) => (y) {
    y = If (c) <then_branch = t () => (a) { a = Relu(x) }, else_branch = e () => (b) { b = Transpose(x) }>
}"""


@pytest.mark.parametrize(
    ("text", "message"),
    [(GROWING, "trip count that only a run knows"), (SHAPES, "changes the shape"), (DIFFERENT, "different shapes")],
)
def test_shapes_that_depend_on_the_run_are_refused_with_the_way_out(text: str, message: str) -> None:
    with pytest.raises(InferError, match=message) as caught:
        compile_model(built(text), CompileOptions(precision="origin"))
    assert all(problem.hint and problem.expected for problem in caught.value.problems)


def test_a_side_that_cannot_run_faults_only_when_it_is_taken() -> None:
    text = """
    net (float[2,3] x, bool c) => (float[2,3] y) {
        k = Constant <value = float[4,3] {0,1,2,3,4,5,6,7,8,9,10,11}> ()
        y = If (c) <then_branch = t () => (a) { a = Relu(x) }, else_branch = e () => (b) { b = Add(x, k) }>
    }"""
    session = InferenceSession(built(text), SessionOptions(precision="origin"))
    x = numbers(2, 3)
    assert np.array_equal(session.run(None, {"x": x, "c": np.asarray(True)})[0], np.maximum(x, 0))
    assert "else_branch" in session.compilation.graph.notes[0]
    with pytest.raises(DeviceFault, match="cannot run with the compiled shapes"):
        session.run(None, {"x": x, "c": np.asarray(False)})
