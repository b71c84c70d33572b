"""Damaged model files: each is refused quickly with a clear error, or gives what onnxruntime gives for the same bytes.

    python tools/fuzz_models.py [--count 200] [--seed 0] [--model FILE.onnx ...] [--json] [--keep DIR]

Models are the small ones of tools/make_models.py, one with If, Loop and Scan, and those of tools/model_zoo.py below
1 MB where they are there.
Three kinds of damage: the file is cut, bytes are flipped outside the weights, fields of the model are swapped or
changed. Every file is compiled and run in a process of its own, which tells the error's family, the CPU seconds and
the peak of resident memory; so does onnxruntime. A verdict is good if a LabError came within a second and 500 MB, or
if both gave the same results.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from make_models import SMALL, random_inputs
from model_zoo import NotMade, zoo_model
from npusim.onnx_bfloat import graphs_of

MOST_SECONDS, MOST_BYTES, MOST_GAP = 1.0, 500 << 20, 1e-3
PATIENCE_S = 60
ZOO = ("mtcnn_pnet", "mtcnn_rnet", "ppocr_cls")
KINDS = ("cut", "flip", "swap")


@dataclass(frozen=True)
class Subject:
    """A model to damage: its bytes and feeds for its inputs."""

    name: str
    data: bytes
    feeds: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Mutant:
    """One damaged file."""

    name: str
    data: bytes
    feeds: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Outcome:
    """``kind``: ran, refused (an error of the program's own kind), crashed (anything else), stuck, killed."""

    kind: str
    text: str = ""
    seconds: float = 0.0
    peak_bytes: int = 0
    outputs: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True)
class Verdict:
    name: str
    good: bool
    what: str
    ours: Outcome
    theirs: Outcome | None = None


def subject_of(path: Path) -> Subject:
    """A model from a file with random inputs; open dimensions become 2."""
    model = onnx.load(str(path))
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if not dim.dim_value:
                dim.dim_value = 2
    return Subject(path.stem, path.read_bytes(), random_inputs(model, 0))


def subjects() -> list[Subject]:
    """The models below 1 MB."""
    found = []
    for name, build in {**SMALL, "control_flow": lambda seed: control_flow()}.items():
        model = build(0)
        found.append(Subject(name, model.SerializeToString(), random_inputs(model, 0, batch=2, seq=5)))
    for name in ZOO:
        try:
            zoo = zoo_model(name)
        except NotMade:
            continue
        found.append(Subject(name, zoo.path.read_bytes(), zoo.feeds[0]))
    return found


def control_flow() -> onnx.ModelProto:
    """An If inside a Loop that carries one value and stacks another, and a Scan over the stack."""

    def value(name: str, shape: tuple[int, ...], elem_type: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, elem_type, shape)

    node = helper.make_node
    sides = {
        "then_branch": helper.make_graph([node("Add", ["s", "half"], ["t"])], "then", [], [value("t", (4,))]),
        "else_branch": helper.make_graph([node("Sub", ["s", "x"], ["e"])], "else", [], [value("e", (4,))]),
    }
    looped = helper.make_graph(
        [
            node("ReduceSum", ["s"], ["total"], keepdims=0),
            node("Greater", ["total", "nought"], ["is_positive"]),
            node("If", ["is_positive"], ["next"], **sides),
            node("Mul", ["next", "x"], ["row"]),
            node("Identity", ["go"], ["stays"]),
        ],
        "looped",
        [value("i", (), TensorProto.INT64), value("go", (), TensorProto.BOOL), value("s", (4,))],
        [value("stays", (), TensorProto.BOOL), value("next", (4,)), value("row", (4,))],
    )
    scanned = helper.make_graph(
        [node("Add", ["c", "r"], ["sum"]), node("Tanh", ["sum"], ["made"]), node("Neg", ["made"], ["out"])],
        "scanned",
        [value("c", (4,)), value("r", (4,))],
        [value("made", (4,)), value("out", (4,))],
    )
    graph = helper.make_graph(
        [
            node("Loop", ["trips", "true", "x"], ["carried", "rows"], body=looped),
            node("Scan", ["carried", "rows"], ["last", "y"], body=scanned, num_scan_inputs=1),
        ],
        "control",
        [value("x", (4,))],
        [value("last", (4,)), value("y", (3, 4))],
        [
            helper.make_tensor("trips", TensorProto.INT64, [], [3]),
            helper.make_tensor("true", TensorProto.BOOL, [], [True]),
            helper.make_tensor("half", TensorProto.FLOAT, [1], [0.5]),
            helper.make_tensor("nought", TensorProto.FLOAT, [], [0.0]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


# -- damage ------------------------------------------------------------------------------------------------------------


def mutants(found: list[Subject], count: int, seed: int) -> list[Mutant]:
    """``count`` damaged files, models and kinds in turn; the same for the same seed."""
    rng = np.random.default_rng(seed)
    result = []
    for index in range(count):
        subject, kind = found[index % len(found)], KINDS[index // len(found) % len(KINDS)]
        data = _DAMAGE[kind](subject.data, rng)
        result.append(Mutant(f"{index:03d}-{subject.name}-{kind}", data, subject.feeds))
    return result


def _cut(data: bytes, rng: np.random.Generator) -> bytes:
    return data[: int(rng.integers(1, len(data)))]


def _flip(data: bytes, rng: np.random.Generator) -> bytes:
    """One to four bytes change anywhere but in the weights' elements."""
    places = _structure(data)
    array = np.frombuffer(data, np.uint8).copy()
    for place in rng.choice(places, int(rng.integers(1, 5))):
        one_bit = rng.random() < 0.5
        array[place] ^= np.uint8(1 << rng.integers(0, 8) if one_bit else rng.integers(1, 256))
    return array.tobytes()


def _structure(data: bytes) -> np.ndarray:
    """Positions of bytes that are no elements of weights."""
    free = np.ones(len(data), bool)
    for tensor in (item for graph in graphs_of(onnx.load_from_string(data).graph) for item in _tensors(graph)):
        if len(tensor.raw_data) >= 16:
            start = data.find(tensor.raw_data)
            while start >= 0:
                free[start : start + len(tensor.raw_data)] = False
                start = data.find(tensor.raw_data, start + len(tensor.raw_data))
    return np.flatnonzero(free)


def _swap(data: bytes, rng: np.random.Generator) -> bytes:
    model = onnx.load_from_string(data)
    graphs = [item for item in graphs_of(model.graph) if item.node]
    _SWAPS[int(rng.integers(len(_SWAPS)))](graphs[int(rng.integers(len(graphs)))], rng)
    return model.SerializeToString()


def _pick(items: Any, rng: np.random.Generator) -> Any:
    return items[int(rng.integers(len(items)))]


def _tensors(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    """Initializers, and what Constant nodes hold."""
    constants = [node for node in graph.node if node.op_type == "Constant"]
    return [*graph.initializer, *(item.t for node in constants for item in node.attribute if item.name == "value")]


def _swap_inputs(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    node = _pick([item for item in graph.node if item.input] or [onnx.NodeProto()], rng)
    names = list(node.input)
    rng.shuffle(names)
    del node.input[:]
    node.input.extend(names)


def _swap_operand(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    """A node reads some other value, perhaps one made later."""
    values = [item.name for item in (*graph.initializer, *graph.input)]
    values += [name for node in graph.node for name in node.output]
    readers = [item for item in graph.node if item.input]
    if not readers:
        return
    node = _pick(readers, rng)
    node.input[int(rng.integers(len(node.input)))] = _pick(values, rng)


def _swap_types(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    one, other = _pick(graph.node, rng), _pick(graph.node, rng)
    one.op_type, other.op_type = other.op_type, one.op_type


def _swap_nodes(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    nodes = list(graph.node)
    rng.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


def _change_attribute(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    attribute = _pick([item for node in graph.node for item in node.attribute] or [onnx.AttributeProto()], rng)
    number = int(rng.choice([-(2**40), -1, 0, 1, 2, 3, 7, 1000, 2**31, 2**62]))
    if attribute.ints:
        attribute.ints[int(rng.integers(len(attribute.ints)))] = number
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = float(rng.choice([0.0, -1.0, np.inf, np.nan, 1e30]))
    else:
        attribute.i = number


def _drop_attribute(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    nodes = [item for item in graph.node if item.attribute]
    if nodes:
        node = _pick(nodes, rng)
        del node.attribute[int(rng.integers(len(node.attribute)))]


def _change_dims(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    tensor = _pick(_tensors(graph) or [onnx.TensorProto()], rng)
    if tensor.dims:
        axis = int(rng.integers(len(tensor.dims)))
        tensor.dims[axis] = int(rng.choice([0, 1, -1, tensor.dims[axis] + 1, 2**33, 2**62]))


def _change_element_type(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    _pick(_tensors(graph) or [onnx.TensorProto()], rng).data_type = int(rng.integers(0, 30))


def _change_input(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    kind = _pick(graph.input or [onnx.ValueInfoProto()], rng).type.tensor_type
    if kind.shape.dim and rng.random() < 0.7:
        _pick(kind.shape.dim, rng).dim_value = int(rng.choice([0, 1, 3, 5, 1 << 20, 2**40]))
    else:
        kind.elem_type = int(rng.integers(0, 20))


def _rename(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    node = _pick(graph.node, rng)
    node.output[0] = str(rng.choice(["", "x", graph.output[0].name, _pick(graph.node, rng).output[0], "名 前/:"]))


_DAMAGE: dict[str, Callable[[bytes, np.random.Generator], bytes]] = {"cut": _cut, "flip": _flip, "swap": _swap}
_SWAPS: tuple[Callable[[onnx.GraphProto, np.random.Generator], None], ...] = (
    _swap_inputs,
    _swap_operand,
    _swap_types,
    _swap_nodes,
    _change_attribute,
    _drop_attribute,
    _change_dims,
    _change_element_type,
    _change_input,
    _rename,
)


# -- running -----------------------------------------------------------------------------------------------------------


def run_ours(data: bytes, feeds: Mapping[str, np.ndarray]) -> Outcome:
    """Compile with the model's own types for the shapes of the feeds, and run."""
    from metadef.error import LabError
    from npusim import InferenceSession, SessionOptions

    shapes = {name: array.shape for name, array in feeds.items()}
    start = time.process_time()
    try:
        session = InferenceSession(data, SessionOptions(precision="origin", threads=1, shapes=shapes))
        outputs = tuple(session.run(None, dict(feeds)))
    except LabError as error:
        return Outcome("refused", f"{type(error).__name__}: {error}", time.process_time() - start, _peak_bytes())
    return Outcome("ran", "", time.process_time() - start, _peak_bytes(), outputs)


def run_onnxruntime(data: bytes, feeds: Mapping[str, np.ndarray]) -> Outcome:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    ort.set_default_logger_severity(4)
    try:
        session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        return Outcome("ran", outputs=tuple(session.run(None, dict(feeds))))
    except Exception as error:  # its errors have no common base
        bound = _bind_inputs(data, feeds)
        return Outcome("refused", str(error)[:300]) if bound == data else run_onnxruntime(bound, feeds)


def _bind_inputs(data: bytes, feeds: Mapping[str, np.ndarray]) -> bytes:
    """The model with the shapes of the feeds declared for its inputs, as ours is told by its caller."""
    model = onnx.load_from_string(data)
    for value in model.graph.input:
        if value.name in feeds:
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=size) for size in feeds[value.name].shape)
    return model.SerializeToString()


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) * 1024


def apart(run: Callable[[bytes, Mapping[str, np.ndarray]], Outcome], mutant: Mutant) -> Outcome:
    """Run in a forked process, so that a crash or a flood of memory stays there."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(run, mutant, send))
    process.start()
    send.close()
    try:
        outcome = receive.recv() if receive.poll(PATIENCE_S) else Outcome("stuck", f"no answer within {PATIENCE_S} s")
    except EOFError:
        outcome = Outcome("killed", "the process ended without an answer")
    process.kill()
    process.join()
    return outcome


def _child(run: Callable[..., Outcome], mutant: Mutant, send: Any) -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak of resident memory starts anew
    try:
        outcome = run(mutant.data, mutant.feeds)
    except BaseException as error:  # the verdict is about any other exception
        outcome = Outcome("crashed", f"{type(error).__name__}: {error}"[:500])
    send.send(outcome)


def judge(mutant: Mutant) -> Verdict:
    """Ours first; onnxruntime only where ours ran."""
    ours = apart(run_ours, mutant)
    if ours.kind == "refused":
        slow, large = ours.seconds > MOST_SECONDS, ours.peak_bytes > MOST_BYTES
        what = "refused" + (f", after {ours.seconds:.1f} s" if slow else "")
        return Verdict(mutant.name, not (slow or large), what + (f", {ours.peak_bytes} bytes" if large else ""), ours)
    if ours.kind != "ran":
        return Verdict(mutant.name, False, f"{ours.kind}: {ours.text}", ours)
    theirs = apart(run_onnxruntime, mutant)
    if theirs.kind != "ran":
        return Verdict(mutant.name, False, f"ran, where onnxruntime {theirs.kind}: {theirs.text}", ours, theirs)
    gap = _gap(ours.outputs, theirs.outputs)
    return Verdict(mutant.name, gap <= MOST_GAP, f"ran, {gap:.1e} from onnxruntime", ours, theirs)


def _gap(ours: tuple[np.ndarray, ...], theirs: tuple[np.ndarray, ...]) -> float:
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return np.inf
        a, b = a.astype(np.float64), b.astype(np.float64)
        odd = ~(np.isfinite(a) & np.isfinite(b))
        if not np.array_equal(a[odd], b[odd], equal_nan=True):
            return np.inf
        size = float(np.linalg.norm(b[~odd]))
        worst = max(worst, float(np.linalg.norm(a[~odd] - b[~odd])) / size if size else float(np.abs(a[~odd]).sum()))
    return worst


def warm_up() -> None:
    """Load in this process what every child needs, so that a child's seconds and bytes are those of its file."""
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Relu", ["x"], ["y"])],
            "warm",
            [helper.make_tensor_value_info("x", 1, [1, 4])],
            [helper.make_tensor_value_info("y", 1, [1, 4])],
        ),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=8,
    )
    run_ours(model.SerializeToString(), {"x": np.ones((1, 4), np.float32)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, help="folder for the files that got no good verdict")
    parser.add_argument("--model", type=Path, action="append", metavar="FILE", help="damage these instead")
    options = parser.parse_args()
    warm_up()
    verdicts = []
    found = [subject_of(path) for path in options.model] if options.model else subjects()
    for mutant in mutants(found, options.count, options.seed):
        verdicts.append(judge(mutant))
        if not verdicts[-1].good:
            print(f"{mutant.name}: {verdicts[-1].what}", file=sys.stderr, flush=True)
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{mutant.name}.onnx").write_bytes(mutant.data)
    kinds = Counter(f"{item.ours.kind}, {'good' if item.good else 'bad'}" for item in verdicts)
    refused = [item.ours for item in verdicts if item.ours.kind == "refused"]
    summary = {
        "files": len(verdicts),
        "good": sum(item.good for item in verdicts),
        "kinds": dict(kinds),
        "slowest_refusal_s": max((item.seconds for item in refused), default=0.0),
        "largest_refusal_bytes": max((item.peak_bytes for item in refused), default=0),
    }
    print(json.dumps(summary, indent=1) if options.json else "\n".join(f"{k}: {v}" for k, v in summary.items()))
    return int(summary["good"] < summary["files"])


if __name__ == "__main__":
    sys.exit(main())
