"""Views and transposes: joined with their like, and moved behind element-wise operators.

A view between a cube operator and what could be its epilogue (Gemm - Reshape - Relu, or the reshapes around a
convolution over lines) hides one from the other. Element-wise operators do not care, so the view goes behind them.
"""

from __future__ import annotations

from metadef.graph import Graph, Node, Tensor
from metadef.op import CostClass, FormatRule
from metadef.passes.cleanup import feeds_output_directly, is_output, operand, same_shape
from metadef.rewrite import Nodes, PassContext, Rule, bypass, inherit, other_readers

VIEW_TYPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def view_above(tensor: Tensor | None) -> Node | None:
    """The view that makes a tensor."""
    node = tensor.producer if tensor is not None else None
    return node if node is not None and node.domain == "ascend" and node.op_type in VIEW_TYPES else None


class JoinViews(Rule):
    """A view of a view is one Reshape; a view that keeps the shape is nothing."""

    roots = VIEW_TYPES

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        source = operand(node)
        if source.desc.origin_shape == node.output.desc.origin_shape and source.desc.is_plain:
            return (node,)
        above = source.producer
        joined = above is not None and above.domain == "ascend" and above.op_type in VIEW_TYPES
        return (node, above) if joined and above is not None else None

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        return feeds_output_directly(graph, nodes[0]) if len(nodes) == 1 else ""

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        node = nodes[0]
        if len(nodes) == 1:
            bypass(graph, node, operand(node))
            return
        above = nodes[1]
        graph.set_input(node, 0, operand(above))
        if same_shape(node) and not feeds_output_directly(graph, node):
            bypass(graph, node, operand(node))
        else:
            node.op_type, node.attrs = "Reshape", {"shape": node.output.desc.origin_shape}
            inherit(node, above)
        if not above.output.uses and not is_output(graph, above.output):
            graph.remove_node(above)


class JoinTransposes(Rule):
    """Two transposes in a row are one; a transpose that moves only axes of size 1 is a view."""

    roots = ("TransposeD",)

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        above = operand(node).producer
        if above is not None and above.domain == "ascend" and above.op_type == "TransposeD":
            return (node, above)
        return (node,) if self._is_view(node) else None

    @staticmethod
    def _is_view(node: Node) -> bool:
        shape = operand(node).desc.origin_shape
        moved = [axis for axis in node.attrs["perm"] if shape[axis] != 1]
        return moved == sorted(moved)

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        if not all(tensor.desc.is_plain for node in nodes for tensor in (operand(node), node.output)):
            return "the tensor is not in a plain format"
        return ""

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        node = nodes[0]
        if len(nodes) == 1:
            node.op_type, node.attrs = "Reshape", {"shape": node.output.desc.origin_shape}
            graph.revision += 1
            return
        above = nodes[1]
        first, second = above.attrs["perm"], node.attrs["perm"]
        graph.set_input(node, 0, operand(above))
        node.attrs = {"perm": tuple(first[axis] for axis in second)}
        inherit(node, above)
        if not above.output.uses and not is_output(graph, above.output):
            graph.remove_node(above)


class SinkView(Rule):
    """f(view(x)) becomes view(f(x)) for element-wise f, and for batch normalisation if the view keeps N and C."""

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        opdef = node.opdef if node.domain == "ascend" else None
        if opdef is None or len(node.outputs) != 1 or node.fused:
            return None
        elementwise = opdef.formats is FormatRule.ANY and opdef.cost is CostClass.ELEMENTWISE
        if not elementwise and node.op_type != "BNInfer":
            return None
        views = {view for tensor in node.inputs if (view := view_above(tensor)) is not None}
        return (node, *sorted(views, key=graph.nodes.index)) if views else None

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        node, *views = nodes
        sources = {operand(view).desc.origin_shape for view in views}
        if len(sources) > 1:
            return f"its operands are views of different shapes: {', '.join(map(str, sorted(sources)))}"
        if any(view.output.desc.origin_shape != node.output.desc.origin_shape for view in views):
            return "a view is broadcast by the operator"
        source = sources.pop()
        others = [tensor for tensor in node.inputs if tensor is not None and view_above(tensor) is None]
        reasons = [self._other_operand(node, tensor, source) for tensor in others]
        reasons += [other_readers(graph, view.output, node) for view in views]
        return next(filter(None, reasons), "")

    @staticmethod
    def _other_operand(node: Node, tensor: Tensor, source: tuple[int, ...]) -> str:
        """Why an operand that is no view does not fit the shape in front of the view; "" if it does."""
        shape = node.output.desc.origin_shape
        if node.op_type == "BNInfer":
            return "" if source[:2] == shape[:2] else "the view does not keep N and C"
        number = tensor.desc.elements == 1 and len(tensor.desc.origin_shape) <= len(source)
        if number or tensor.desc.origin_shape == source[-1:] == shape[-1:]:
            return ""
        return f"operand '{tensor.name}' of shape {tensor.desc.origin_shape} is made for the shape behind the view"

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        node, *views = nodes
        shape = node.output.desc.origin_shape
        for slot, tensor in enumerate(node.inputs):
            if (view := view_above(tensor)) is not None:
                graph.set_input(node, slot, operand(view))
        graph.reinfer(node)
        keep = graph.nodes[graph.nodes.index(node) + 1] if graph.nodes[-1] is not node else None
        view = graph.add_node("Reshape", [node.output], {"shape": shape}, views[0].name, layer=node.layer, before=keep)
        inherit(view, *views)
        graph.replace_uses(node.output, view.output, keep=[view])
        view.output.name = graph.unique_name(f"{node.output.name}_view")
        for old in views:
            graph.remove_node(old)
        view.name = views[0].name


class FoldTranspose(Rule):
    """A transpose of the last two axes in front of a matrix product becomes the product's transpose flag."""

    roots = ("MatMulV2", "BatchMatMulV2")
    _FLAGS = {"MatMulV2": ("transpose_x1", "transpose_x2"), "BatchMatMulV2": ("adj_x1", "adj_x2")}

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        for slot in (0, 1):
            tensor = node.inputs[slot]
            above = tensor.producer if tensor is not None else None
            if above is not None and above.domain == "ascend" and above.op_type == "TransposeD":
                *lead, rows, columns = range(len(above.attrs["perm"]))
                if above.attrs["perm"] == (*lead, columns, rows):
                    return (node, above)
        return None

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        node, above = nodes
        if node.inputs[0] is node.inputs[1]:
            return "both operands are the same transpose"
        return "" if operand(above).desc.is_plain else "the tensor is not in a plain format"

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        node, above = nodes
        slot = 0 if node.inputs[0] is above.output else 1
        flag = self._FLAGS[node.op_type][slot]
        graph.set_input(node, slot, operand(above))
        node.attrs[flag] = not node.attrs[flag]
        inherit(node, above)
        if not above.output.uses and not is_output(graph, above.output):
            graph.remove_node(above)
