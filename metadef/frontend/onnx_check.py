"""What must hold before an ONNX graph is worth a look: known operators, one producer a value, no cycles or loose ends.

Every check collects all its faults before it raises.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import onnx
from onnx import checker, defs, helper

from metadef.error import ModelError, OperatorError, Problem, UsageError, near_misses, suggest
from metadef.frontend.onnx_read import MAIN, all_nodes, captured_names, label_of, subgraphs

OLDEST_OPSET = 7


def opset_versions(model: onnx.ModelProto) -> dict[str, int]:
    """Domain -> imported version; the main domain is "".

    Raises:
        ModelError: no opset is imported, or the main one is out of range.
    """
    versions = {"" if item.domain in MAIN else item.domain: item.version for item in model.opset_import}
    odd = {domain: version for domain, version in versions.items() if not 0 < version < 1 << 31}
    if odd:
        raise ModelError("an opset version is no version", code="E16005", expected="1 or more", got=str(odd))
    newest = defs.onnx_opset_version()
    if not versions:
        raise ModelError("the model imports no opset", code="E16005", expected="opset_import with a version")
    version = versions.get("", OLDEST_OPSET)
    if not OLDEST_OPSET <= version <= newest:
        raise ModelError(
            f"opset {version} is not supported",
            code="E16005",
            expected=f"{OLDEST_OPSET} to {newest}",
            got=str(version),
            hint="install a newer onnx package, or export with another opset",
        )
    return versions


def check_texts(model: onnx.ModelProto) -> None:
    """Raises ModelError (E10041) if a name is no valid UTF-8: the parser hands such names on as bytes."""
    graph = model.graph
    texts = [item.name for item in (*graph.input, *graph.output, *graph.initializer)]
    texts += [item.domain for item in model.opset_import]
    for node in all_nodes(graph.node):
        texts += (node.name, node.op_type, node.domain, *node.input, *node.output)
        texts += [attribute.name for attribute in node.attribute]
    broken = [text for text in texts if not isinstance(text, str)]
    if broken:
        raise ModelError(
            "names are damaged", code="E10041", expected="UTF-8", got=repr(broken[0]), hint="copy the file again"
        )


def modern(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """The model under opset 7 if it is older, with a note; else the model itself.

    Raises:
        ModelError: the converter of the onnx package refuses.
    """
    old = [item.version for item in model.opset_import if item.domain in MAIN]
    if not old or not 0 < old[0] < OLDEST_OPSET:
        return model, []
    from onnx import version_converter

    try:
        converted = version_converter.convert_version(model, OLDEST_OPSET)
    except Exception as error:  # the converter raises RuntimeError, and ConvertError of its own
        raise ModelError(
            f"opset {old[0]} cannot be converted to {OLDEST_OPSET}",
            code="E16005",
            expected=f"{OLDEST_OPSET} to {defs.onnx_opset_version()}",
            got=str(error).split("\n")[0],
            hint="export the model again with a newer opset",
        ) from error
    return converted, [f"opset {old[0]} was converted to {OLDEST_OPSET}"]


def check_fixed(values: Mapping[str, np.ndarray], graph: onnx.GraphProto) -> None:
    """Raises UsageError for fixed values that name no input (E10016), or do not fit the initializer they replace."""
    inputs = {item.name: item for item in graph.input}
    constants = {item.name: item for item in graph.initializer}
    problems: list[Problem] = []
    for name, value in values.items():
        if name in inputs:
            problems += _misfits(name, value, inputs[name], constants[name]) if name in constants else []
        elif name in constants:
            hint = "list it among the graph's inputs, and it is a default"
            problems.append(Problem(f"initializer '{name}' cannot be replaced", "E10016", hint=hint))
        else:
            problems.append(Problem(f"the model has no input '{name}'", "E10016", hint=suggest(name, inputs)))
    if problems:
        raise UsageError(problems)


def _misfits(
    name: str, value: np.ndarray, declared: onnx.ValueInfoProto, default: onnx.TensorProto
) -> Iterable[Problem]:
    """What is wrong with a value in place of an initializer: its type, or its shape where the input declares one."""
    dtype = helper.tensor_dtype_to_np_dtype(default.data_type)
    if value.dtype != dtype:
        hint = f"convert it: array.astype('{dtype}')"
        yield Problem("a value has the wrong element type", "E10016", "", name, dtype.name, value.dtype.name, hint)
    shape: list[int | str] = list(default.dims)
    if declared.type.tensor_type.HasField("shape"):
        dims = declared.type.tensor_type.shape.dim
        shape = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims]
    same = len(shape) == value.ndim and all(
        isinstance(size, str) or size == own for size, own in zip(shape, value.shape, strict=True)
    )
    if not same:
        hint = "an open dimension in the input's declaration allows other sizes"
        yield Problem("a value has the wrong shape", "E10016", "", name, str(shape), str(list(value.shape)), hint)


@lru_cache(maxsize=4096)
def find_schema(op_type: str, domain: str, version: int) -> defs.OpSchema | None:
    """The operator's schema under an opset version, or None.

    Withdrawn operators count as absent, unless a later opset declares them anew (GroupNormalization 18 and 21).
    """
    try:
        schema = defs.get_schema(op_type, version, domain)
        newest = defs.get_schema(op_type, domain)
    except defs.SchemaError:
        return None
    return None if newest.deprecated and schema.deprecated else schema


def check_operators(model: onnx.ModelProto, versions: Mapping[str, int]) -> None:
    """Raises OperatorError (E16002) naming every operator that neither ONNX nor the model defines, or misused ones."""
    local = {(function.domain, function.name) for function in model.functions}
    problems: dict[tuple[str, str], Problem] = {}
    bodies = [(versions, model.graph.node)]
    for function in model.functions:
        own = {"" if item.domain in MAIN else item.domain: item.version for item in function.opset_import}
        bodies.append((own, function.node))
    for imported, body in bodies:
        for node in all_nodes(body):
            domain = "" if node.domain in MAIN else node.domain
            key = (domain, node.op_type)
            if key in problems or key in local:
                continue
            if (schema := find_schema(node.op_type, domain, imported.get(domain, 1))) is not None:
                if (surplus := _surplus(node, schema)) is not None:
                    problems[domain, label_of(node)] = surplus
                continue
            problems[key] = _unknown(node, domain, imported.get(domain))
    if problems:
        raise OperatorError(problems.values())


def _surplus(node: onnx.NodeProto, schema: defs.OpSchema) -> Problem | None:
    """More results than the operator has (shape inference sees to the operands)."""
    if len(node.output) <= schema.max_output:
        return None
    expected = f"at most {schema.max_output}"
    return Problem(
        f"{node.op_type} with too many results", "E16002", label_of(node), expected=expected, got=str(len(node.output))
    )


def _unknown(node: onnx.NodeProto, domain: str, version: int | None) -> Problem:
    label = label_of(node)
    if version is None:
        return Problem(
            f"'{domain or 'ai.onnx'}::{node.op_type}' belongs to a domain the model does not import", "E16005", label
        )
    shown = f"{domain or 'ai.onnx'}::{version}::{node.op_type}"
    history = [
        schema
        for schema in defs.get_all_schemas_with_history()
        if (schema.domain, schema.name) == (domain, node.op_type)
    ]
    if history:
        since = min(schema.since_version for schema in history)
        gone = [schema.since_version for schema in history if schema.deprecated]
        got = f"opset {version}; the operator exists from {since}" + (
            f" and was withdrawn in {min(gone)}" if gone else ""
        )
        return Problem(f"no such operator: {shown}", "E16002", label, got=got, hint="export with an opset that has it")
    known = {schema.name for schema in defs.get_all_schemas()}
    close = near_misses(node.op_type, known)
    hint = (
        f"nearest known: {', '.join(close)}"
        if close
        else "declare it as a model-local function, or export it as standard operators"
    )
    return Problem(f"unknown operator: {shown}", "E16002", label, hint=hint)


def repeated_names(graph: onnx.GraphProto) -> list[str]:
    """A remark on nodes that share a name: exporters write such models, and every node gets a name of its own here."""
    counts = Counter(node.name for node in graph.node if node.name)
    shared = [f"'{name}' ({count} nodes)" for name, count in counts.items() if count > 1]
    if not shared:
        return []
    more = f" and {len(shared) - 3} names more" if len(shared) > 3 else ""
    return [f"nodes share a name and were numbered: {', '.join(shared[:3])}{more}"]


def _constant_problems(graph: onnx.GraphProto) -> list[Problem]:
    """Constants that share a name (E13009) or have a negative dimension (E10041), whether they are read or not."""
    named = [(item.name, item.dims) for item in graph.initializer]
    named += [(item.values.name, item.dims) for item in graph.sparse_initializer]
    counts = Counter(name for name, _ in named)
    problems = [
        Problem(f"{count} constants are called '{name}'", "E13009", hint="rename all but one")
        for name, count in counts.items()
        if count > 1
    ]
    for name, dims in named:
        if min(dims, default=0) < 0:
            text = f"constant '{name}' has a negative dimension"
            problems.append(Problem(text, "E10041", expected="sizes of 0 or more", got=str(list(dims))))
    return problems


def check_outputs(names: Sequence[str]) -> None:
    """Raises ModelError if an output of the graph is listed twice."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ModelError(
            [Problem(f"graph output '{name}' is listed twice", code="E14001", hint="list it once") for name in twice]
        )


def check_values(graph: onnx.GraphProto) -> None:
    """Raises ModelError naming values with two producers (E13009), broken constants and operands nobody makes (E13025).

    Inputs and constants may share a name: the constant is then the input's default.
    """
    problems = _constant_problems(graph)
    constants = {item.name for item in graph.initializer} | {item.values.name for item in graph.sparse_initializer}
    made = dict.fromkeys(constants | {item.name for item in graph.input}, "an input or a constant")
    for node in graph.node:
        label = label_of(node)
        for name in node.output:
            if not name:
                continue
            if name in made:
                problems.append(
                    Problem(
                        f"value '{name}' is made twice",
                        "E13009",
                        label,
                        got=f"also made by {made[name]}",
                        hint="rename one of them",
                    )
                )
            made[name] = f"node '{label}'"
    for node in graph.node:
        for name in (*node.input, *captured_names(node)):
            if name and name not in made:
                problems.append(
                    Problem(f"nobody makes operand '{name}'", "E13025", label_of(node), hint=suggest(name, made))
                )
    for output in graph.output:
        if output.name not in made:
            problems.append(
                Problem(f"nobody makes the graph output '{output.name}'", "E13031", hint=suggest(output.name, made))
            )
    if not graph.output:
        problems.append(Problem("the graph has no outputs", "E16001", expected="at least one output"))
    if problems:
        raise ModelError(problems)


def sorted_nodes(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Stable topological order; captures of subgraphs count as operands.

    Raises:
        ModelError: the nodes form a cycle, which is named.
    """
    nodes = list(nodes)
    producer = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    before = [{producer[name] for name in (*node.input, *captured_names(node)) if name in producer} for node in nodes]
    after: list[list[int]] = [[] for _ in nodes]
    for index, needed in enumerate(before):
        for item in needed:
            after[item].append(index)
    waiting = [len(needed) for needed in before]
    ready = [index for index, count in enumerate(waiting) if count == 0]
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for follower in after[index]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, follower)
    if len(order) < len(nodes):
        raise _cycle_error(nodes, before, {index for index, count in enumerate(waiting) if count})
    return [nodes[index] for index in order]


def _check_body(node: onnx.NodeProto, graph: onnx.GraphProto) -> None:
    """Raises ModelError if a subgraph has not as many results as its node, makes a value twice or is out of order.

    Runtimes sort the nodes of a model, those of a subgraph they run as they stand.
    """
    expected = len(node.output) + (1 if node.op_type == "Loop" else 0)
    if node.op_type in ("If", "Loop", "Scan") and len(graph.output) != expected:
        raise ModelError(
            f"subgraph '{graph.name}' of the {node.op_type} has {len(graph.output)} results",
            code="E14001",
            node=label_of(node),
            expected=str(expected),
        )
    nodes = list(graph.node)
    made = Counter(
        name for name in (*(item.name for item in graph.input), *(n for x in nodes for n in x.output)) if name
    )
    twice = [name for name, count in made.items() if count > 1]
    if twice:
        raise ModelError(
            f"value '{twice[0]}' is made twice in subgraph '{graph.name}'", code="E13009", hint="rename one of the two"
        )
    for one, other in zip(nodes, sorted_nodes(nodes), strict=True):
        if one is not other:
            raise ModelError(
                f"the nodes of subgraph '{graph.name}' are not in the order of their operands",
                code="E13009",
                node=label_of(one),
                expected=f"'{label_of(other)}' before it",
                hint="sort the nodes topologically",
            )


def _cycle_error(nodes: list[onnx.NodeProto], before: list[set[int]], stuck: set[int]) -> ModelError:
    """Walk backwards among the stuck nodes until one repeats: that loop is the cycle."""
    trail: list[int] = []
    index = min(stuck)
    while index not in trail:
        trail.append(index)
        index = min(before[index] & stuck)
    loop = [*reversed(trail[trail.index(index) :])]
    names = [nodes[item].name or f"{nodes[item].op_type} of '{nodes[item].output[0]}'" for item in (*loop, loop[0])]
    return ModelError(
        "the graph has a cycle",
        code="E13009",
        got=" -> ".join(names),
        hint="cut the loop: one of these nodes must read an earlier value",
    )


def _without_bodies(node: onnx.NodeProto) -> onnx.NodeProto:
    """The node with empty subgraphs: the checker takes what they read from outside for unknown."""
    if not any(item.HasField("g") for item in node.attribute):
        return node
    made = onnx.NodeProto(name=node.name, op_type=node.op_type, domain=node.domain)
    made.input.extend(node.input)
    made.output.extend(node.output)
    for item in node.attribute:
        fields = {field.name: value for field, value in item.ListFields()}
        if item.HasField("g"):
            fields["g"] = onnx.GraphProto(name="body")
        made.attribute.append(onnx.AttributeProto(**fields))
    return made


def check_nodes(nodes: Iterable[onnx.NodeProto], model: onnx.ModelProto, versions: Mapping[str, int]) -> None:
    """Attributes and operand counts of nodes, those in subgraphs too, and the order of nodes in subgraphs.

    Raises:
        ModelError: a node's schema forbids them (E14001), all at once, or a node stands before one that it reads.
    """
    context = checker.C.CheckerContext()
    context.ir_version = model.ir_version or onnx.IR_VERSION
    context.opset_imports = {item.domain: item.version for item in model.opset_import}
    problems = []
    for node in all_nodes(nodes):
        for graph in subgraphs(node):
            _check_body(node, graph)
        domain = "" if node.domain in MAIN else node.domain
        schema = find_schema(node.op_type, domain, versions.get(domain, 1))
        if node.op_type == "Constant" or schema is None or schema.deprecated:
            continue
        try:
            checker.check_node(_without_bodies(node), context)
        except (checker.ValidationError, UnicodeDecodeError) as error:
            text = str(error).split("\n")[0].strip()
            problems.append(Problem(text, "E14001", label_of(node)))
    if problems:
        raise ModelError(problems)
