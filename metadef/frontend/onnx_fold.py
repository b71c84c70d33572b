"""One walk over an ONNX graph with concrete shapes: types are inferred node by node, constants computed on the way.

Because every shape is known, all shape arithmetic becomes constants before anybody needs it, so the per-node inference
of the onnx package sees the values it asks for. What is left is a list of nodes that really compute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TypeProto, checker, helper, numpy_helper, shape_inference

from metadef.error import InferError, LabError, ModelError, OperatorError, Problem
from metadef.frontend.onnx_check import find_schema
from metadef.frontend.onnx_control import CONTROL, Body, walk_control
from metadef.frontend.onnx_read import (
    MOST_AXES,
    TensorReader,
    attributes,
    captured_names,
    label_of,
    shape_of,
    subgraphs,
)
from metadef.ops.geometry import window_count
from metadef.ops.numeric import condensed

T = TypeVar("T")

SMALL_ELEMENTS = 4096
"""Constants up to this size are shown to shape inference; larger uniform ones are kept as one stretched element."""
FOLD_BYTES = 64 << 20
"""A node is not folded if its result would be larger than this and than its operands together."""
_NEVER_FOLD = frozenset((
    "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout",
    "LRN",
))  # fmt: skip
"""What differs from run to run; and LRN, whose window ONNX's reference implementation has wrong."""
_FLATTENING = frozenset(("Softmax", "LogSoftmax", "Hardmax"))
"""They work on all axes from theirs on before opset 13, which ONNX's reference implementation does not know."""
_NO_COPY = frozenset(("Constant", "ConstantOfShape", "Identity", "Unsqueeze", "Squeeze"))


class ShapeWalk:
    """Types and constants of a graph's values, and the nodes that are left to compute (``nodes``).

    ``bodies`` holds the walked subgraphs of every If, Loop and Scan that is left, by the node's first result.
    """

    def __init__(self, versions: Mapping[str, int], reader: TensorReader, ir_version: int) -> None:
        self.types: dict[str, TypeProto] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.notes: list[str] = []
        self.bodies: dict[str, dict[str, Body]] = {}
        self._versions = dict(versions)
        self._imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
        self._reader = reader
        self._ir_version = ir_version
        self._data: dict[str, onnx.TensorProto] = {}

    def child(self, names: Iterable[str]) -> ShapeWalk:
        """A walk for a subgraph that knows the outer values ``names``."""
        inner = ShapeWalk(self._versions, self._reader, self._ir_version)
        for name in names:
            inner.types[name] = self.types[name]
            if name in self.constants:
                inner.constants[name] = self.constants[name]
        return inner

    def version(self, domain: str) -> int:
        """The opset of a domain."""
        return self._versions.get(domain, 1)

    def run_graph(self, graph: onnx.GraphProto) -> None:
        """Walk a subgraph, its constants first; its formal inputs must be known. Errors as in :meth:`run`."""
        for tensor in graph.initializer:
            self.add_constant(tensor.name, self._reader.array(tensor))
        self.run(graph.node)

    def add_input(self, name: str, elem_type: int, shape: Iterable[int]) -> None:
        sizes = tuple(shape)
        _check_axes(name, len(sizes))
        self.types[name] = helper.make_tensor_type_proto(elem_type, sizes)

    def add_constant(self, name: str, value: np.ndarray) -> None:
        self.constants[name] = value
        elem_type = helper.np_dtype_to_tensor_dtype(value.dtype)
        self.types[name] = helper.make_tensor_type_proto(elem_type, value.shape)

    def run(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Walk nodes in execution order.

        Raises:
            InferError: a node's operands do not fit; all such nodes that can be found are listed.
        """
        work = deque(nodes)
        problems: list[Problem] = []
        while work:
            node = work.popleft()
            read = (*node.input, *captured_names(node)) if problems else node.input
            if any(name and name not in self.types for name in read):
                continue  # behind a node that already failed
            try:
                taken = self._taken_branch(node)
                if taken is not None:
                    work.extendleft(reversed(taken))
                elif not self._fold(node):
                    self._settle(node)
                    self.nodes.append(node)
            except LabError as error:
                problems += error.problems
        if problems:
            raise InferError(problems)

    def _settle(self, node: onnx.NodeProto) -> None:
        """Types of a node that stays. One with subgraphs that cannot become device tasks may still run on the host."""
        if node.domain not in ("", "ai.onnx") or node.op_type not in CONTROL:
            self._infer(node)
            return
        try:
            walk_control(self, node)
        except LabError as error:
            try:
                self._infer(node)
            except LabError:
                raise error from None
            self.notes.append(f"{node.op_type} '{label_of(node)}' stays on the host: {error.problems[0].message}")

    # -- constants ----------------------------------------------------------------------------------------------------

    def _fold(self, node: onnx.NodeProto) -> bool:
        """Compute a node whose result does not depend on any input; whether that was done."""
        main = node.domain in ("", "ai.onnx")
        if main and node.op_type in ("Shape", "Size"):
            self.add_constant(node.output[0], self._shape_value(node))
            return True
        if node.op_type in _NEVER_FOLD or any(True for _ in subgraphs(node)):
            return False
        if main and node.op_type in _FLATTENING and self._versions.get("", 1) < 13:
            return False
        if not all(name in self.constants for name in node.input if name):
            return False
        operands = [self.constants[name] if name else None for name in node.input]
        quick = _QUICK.get(node.op_type) if main else None
        if self._sees_much(node, operands) and self._too_large(node, operands):
            return False
        if quick is not None:
            results = [_attempt(node, lambda: quick(node, operands, self._reader))]
        else:
            try:
                results = self._reference(node)
            except InferError as error:
                self.notes.append(f"constant node '{label_of(node)}' was not folded: {error.problems[0].message}")
                return False
        for name, value in zip(node.output, results):
            if name:
                self.add_constant(name, np.asarray(value))
        return True

    @staticmethod
    def _sees_much(node: onnx.NodeProto, operands: list[np.ndarray | None]) -> bool:
        """Whether the size of the result is worth a look: shape arithmetic is small, and views take no memory."""
        if node.domain not in ("", "ai.onnx") or node.op_type not in _QUICK:
            return True
        return node.op_type not in _NO_COPY and any(
            value is not None and value.size > SMALL_ELEMENTS for value in operands
        )

    def _shape_value(self, node: onnx.NodeProto) -> np.ndarray:
        dims = shape_of(self.types[node.input[0]]) or ()
        if node.op_type == "Size":
            return np.asarray(prod(dims), np.int64)
        attrs = attributes(node)
        return np.asarray(dims[attrs.get("start", 0) : attrs.get("end", len(dims))], np.int64)

    def _too_large(self, node: onnx.NodeProto, operands: list[np.ndarray | None]) -> bool:
        self._infer(node)
        taken = sum(condensed(value).nbytes for value in operands if value is not None)
        made = sum(prod(shape_of(self.types[name]) or ()) * 4 for name in node.output if name)
        return made > max(FOLD_BYTES, 2 * taken)

    def _reference(self, node: onnx.NodeProto) -> list[Any]:
        from onnx.reference import ReferenceEvaluator

        names = [name for name in dict.fromkeys(node.input) if name]
        inputs = [helper.make_value_info(name, self.types[name]) for name in names]
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = helper.make_graph([node], "fold", inputs, outputs)
        model = helper.make_model(graph, opset_imports=self._imports, ir_version=self._ir_version)
        feeds = {name: self.constants[name] for name in names}
        made = _attempt(node, lambda: ReferenceEvaluator(model).run(None, feeds))
        results = iter(made)
        return [next(results) if name else None for name in node.output]

    # -- types --------------------------------------------------------------------------------------------------------

    def _infer(self, node: onnx.NodeProto) -> None:
        domain = "" if node.domain == "ai.onnx" else node.domain
        schema = find_schema(node.op_type, domain, self._versions.get(domain, 1))
        assert schema is not None, "check_operators ran before"
        if not schema.has_type_and_shape_inference_function and not domain:
            # Comparisons and Compress learnt it in a later version.
            schema = find_schema(node.op_type, domain, onnx.defs.onnx_opset_version()) or schema
        if not schema.has_type_and_shape_inference_function and not domain:
            made = {name: self.types[node.input[0]] for name in node.output}  # the two such operators normalise
        else:
            made = self._inferred(node, schema)
        if node.op_type in ("MaxPool", "AveragePool") and not domain:
            made = _without_late_windows(node, self.types[node.input[0]], made)
        for name in node.output:
            if name:
                self.types[name] = self._concrete(node, name, made.get(name))

    def _inferred(self, node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> dict[str, TypeProto]:
        names = {name for name in node.input if name} | set(captured_names(node))
        types = {name: self.types[name] for name in names}
        if node.op_type == "GatherND" and attributes(node).get("batch_dims", 0) < 0:  # the onnx package would crash
            raise InferError("batch_dims is negative", code="E14001", node=label_of(node), expected="0 or more")
        data = {name: self._small(name) for name in names if self._is_small(name)}
        try:
            return shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=self._imports, ir_version=self._ir_version
            )
        except (shape_inference.InferenceError, checker.ValidationError, ValueError, TypeError, IndexError) as error:
            shown = ", ".join(f"{name} {list(shape_of(types[name]) or ())}" for name in node.input if name)
            text = str(error).split("\n")[0].removeprefix("[ShapeInferenceError] ")
            raise InferError(text, code="E14001", node=label_of(node), got=f"{node.op_type}({shown})") from None

    def _concrete(self, node: onnx.NodeProto, name: str, made: TypeProto | None) -> TypeProto:
        if made is not None and not made.HasField("tensor_type"):
            kind = made.WhichOneof("value") or "untyped"
            raise OperatorError(
                f"value '{name}' is no tensor",
                code="E14001",
                node=label_of(node),
                got=kind,
                hint="sequences and optionals have no place here",
            )
        if made is None or shape_of(made) is None:
            raise InferError(
                f"the shape of '{name}' is known only when the model runs",
                code="E14001",
                node=label_of(node),
                expected="sizes that follow from the inputs' shapes",
                got=f"{node.op_type}, whose result depends on values",
                hint="cut the model before this node, or replace it by one with a fixed size",
            )
        _check_axes(name, len(shape_of(made) or ()), label_of(node))
        return made

    def _is_small(self, name: str) -> bool:
        value = self.constants.get(name)
        return value is not None and value.size <= SMALL_ELEMENTS and value.dtype != object

    def _small(self, name: str) -> onnx.TensorProto:
        if name not in self._data:
            self._data[name] = numpy_helper.from_array(
                np.ascontiguousarray(self.constants[name]).reshape(self.constants[name].shape)
            )
        return self._data[name]

    # -- branches -----------------------------------------------------------------------------------------------------

    def _taken_branch(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """The nodes of the branch that an If with a constant condition takes, under unique names; else None."""
        if node.op_type != "If" or node.input[0] not in self.constants:
            return None
        wanted = "then_branch" if self.constants[node.input[0]].reshape(-1)[0] else "else_branch"
        branch = next(attribute.g for attribute in node.attribute if attribute.name == wanted)
        rename = dict(zip((item.name for item in branch.output), node.output))
        prefix = label_of(node)
        for name in (
            *(item.name for item in branch.initializer),
            *(name for inner in branch.node for name in inner.output),
        ):
            if name:
                rename.setdefault(name, f"{prefix}/{name}")
        for tensor in branch.initializer:
            self.add_constant(rename[tensor.name], self._reader.array(tensor))
        result = [_renamed(inner, rename, prefix) for inner in branch.node]
        made = {name for inner in result for name in inner.output}
        for item, target in zip(branch.output, node.output):
            if target not in made:  # the branch hands an outer value or a constant through
                source = item.name if item.name not in rename or rename[item.name] == target else rename[item.name]
                if target in self.constants:
                    continue
                result.append(helper.make_node("Identity", [source], [target], name=f"{prefix}/{target}"))
        return result


def _check_axes(name: str, count: int, node: str = "") -> None:
    """Raises InferError for a value of more axes than arrays can have."""
    if count > MOST_AXES:
        text, expected = f"value '{name}' has more axes than an array can have", f"{MOST_AXES} axes at most"
        raise InferError(text, code="E14001", node=node, expected=expected, got=f"{count} axes")


def _attempt(node: onnx.NodeProto, compute: Callable[[], T]) -> T:
    """A constant node's value. Whatever goes wrong, the node's operands are at fault: raises InferError."""
    try:
        with np.errstate(all="ignore"):
            return compute()
    except LabError:
        raise
    except Exception as error:
        raise InferError(
            f"cannot compute the constant node: {error}", code="E14001", node=label_of(node), got=node.op_type
        ) from error


def _renamed(node: onnx.NodeProto, rename: Mapping[str, str], prefix: str) -> onnx.NodeProto:
    """A copy of a node with its values renamed, in nested graphs as well."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = f"{prefix}/{node.name}" if node.name else ""
    copy.input[:] = [rename.get(name, name) for name in node.input]
    copy.output[:] = [rename.get(name, name) for name in node.output]
    for graph in subgraphs(copy):
        for inner in graph.node:
            inner.CopyFrom(_renamed(inner, rename, prefix))
        for output in graph.output:
            output.name = rename.get(output.name, output.name)
    return copy


def _without_late_windows(node: onnx.NodeProto, x: TypeProto, made: dict[str, TypeProto]) -> dict[str, TypeProto]:
    """Result types of a pooling with ``ceil_mode``: a last window that starts in the end padding does not count.

    The specification drops it; the inference functions of older opsets keep it.
    """
    attrs = attributes(node)
    shape = shape_of(x)
    if not attrs.get("ceil_mode", 0) or attrs.get("auto_pad", b"NOTSET") != b"NOTSET" or shape is None:
        return made
    kernel = attrs["kernel_shape"]
    rank = len(kernel)
    pads, strides = attrs.get("pads") or [0] * 2 * rank, attrs.get("strides") or [1] * rank
    dilations = attrs.get("dilations") or [1] * rank
    sizes = [
        window_count(shape[2 + i], kernel[i], strides[i], pads[i], pads[rank + i], dilations[i], ceil_mode=True)
        for i in range(rank)
    ]
    return {
        name: helper.make_tensor_type_proto(found.tensor_type.elem_type, (*shape[:2], *sizes))
        for name, found in made.items()
    }


# -- quick forms of what shape arithmetic is made of ------------------------------------------------------------------

Operands = list[np.ndarray | None]


def _constant(node: onnx.NodeProto, operands: Operands, reader: TensorReader) -> np.ndarray:
    (attribute,) = node.attribute
    value = helper.get_attribute_value(attribute)
    if attribute.name == "value":
        return reader.array(value)
    if attribute.name == "sparse_value":
        return reader.sparse(value)
    if attribute.name.startswith("value_string"):
        items = value if isinstance(value, list) else [value]
        text = np.array([item.decode() for item in items], dtype=object)
        return text if isinstance(value, list) else text.reshape(())
    return np.asarray(value, np.int64 if attribute.name.startswith("value_int") else np.float32)


def _constant_of_shape(node: onnx.NodeProto, operands: Operands, reader: TensorReader) -> np.ndarray:
    given = attributes(node).get("value")
    fill = np.zeros(1, np.float32) if given is None else reader.array(given).reshape(-1)
    shape = tuple(int(size) for size in _given(operands, 0))
    if any(size < 0 for size in shape):
        raise InferError("a size is negative", code="E14001", node=label_of(node), got=str(shape))
    stretched = np.broadcast_to(fill[0], shape)
    return stretched.copy() if prod(shape) <= SMALL_ELEMENTS else stretched


def _given(operands: Operands, position: int) -> np.ndarray:
    value = operands[position]
    if value is None:
        raise ModelError("a constant node lacks an operand", code="E14001", got=f"nothing at position {position}")
    return value


def _axes(node: onnx.NodeProto, operands: Operands) -> tuple[int, ...] | None:
    if len(operands) > 1 and operands[1] is not None:
        return tuple(int(axis) for axis in operands[1].reshape(-1))
    found = attributes(node).get("axes")
    return None if found is None else tuple(found)


def _unsqueeze(node: onnx.NodeProto, operands: Operands, reader: TensorReader) -> np.ndarray:
    return np.expand_dims(_given(operands, 0), _axes(node, operands) or ())


def _squeeze(node: onnx.NodeProto, operands: Operands, reader: TensorReader) -> np.ndarray:
    return np.squeeze(_given(operands, 0), _axes(node, operands))


def _concat(node: onnx.NodeProto, operands: Operands, reader: TensorReader) -> np.ndarray:
    return np.concatenate(
        [_given(operands, position) for position in range(len(operands))], axis=attributes(node)["axis"]
    )


def _gather(node: onnx.NodeProto, operands: Operands, reader: TensorReader) -> np.ndarray:
    return np.take(_given(operands, 0), _given(operands, 1), axis=attributes(node).get("axis", 0))


def _transpose(node: onnx.NodeProto, operands: Operands, reader: TensorReader) -> np.ndarray:
    return np.ascontiguousarray(_given(operands, 0).transpose(attributes(node).get("perm")))


def _binary(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def quick(node: onnx.NodeProto, operands: Operands, reader: TensorReader) -> np.ndarray:
        return function(_given(operands, 0), _given(operands, 1))

    return quick


_QUICK: dict[str, Callable[[onnx.NodeProto, Operands, TensorReader], np.ndarray]] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Identity": lambda node, operands, reader: _given(operands, 0),
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Concat": _concat,
    "Gather": _gather,
    "Transpose": _transpose,
    "Add": _binary(np.add),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
}
