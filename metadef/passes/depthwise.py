"""A depthwise convolution is a grouped one: the kernels know one form of both."""

from __future__ import annotations

from metadef.graph import Graph, Node
from metadef.ops.cube import grouped_filter
from metadef.passes.cleanup import operand
from metadef.rewrite import Nodes, PassContext, Rule


class GroupDepthwise(Rule):
    """DepthwiseConv2D with a filter (multiplier, C, KH, KW) becomes Conv2D with (C * multiplier, 1, KH, KW)."""

    roots = ("DepthwiseConv2D",)

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        return (node,)

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        (node,) = nodes
        filters = operand(node, 1)
        times, channels, *window = filters.desc.origin_shape
        if filters.const is not None:
            value = grouped_filter(filters.const)
            grouped = graph.add_const(f"{filters.name}_grouped", value, filters.desc.format, filters.desc.dtype)
        else:
            turned = graph.add_node("TransposeD", [filters], {"perm": (1, 0, 2, 3)}, f"{node.name}_filter", before=node)
            shape = (channels * times, 1, *window)
            grouped = graph.add_node(
                "Reshape", [turned.output], {"shape": shape}, f"{node.name}_filter", before=node
            ).output
        graph.set_input(node, 1, grouped)
        node.op_type, node.attrs = "Conv2D", {**node.attrs, "groups": channels}
        graph.revision += 1
