"""AIPP in the load of a first convolution: the cube reads pictures, images of them lie in L1 only."""

from __future__ import annotations

import numpy as np

from metadef.graph import Graph, Node
from metadef.ops.aipp import normal_table
from metadef.ops.numeric import HALF_MAX
from metadef.rewrite import Nodes, PassContext, Rule, bypass, inherit, other_readers


class FuseAipp(Rule):
    """Conv2D behind an Aipp that nothing else reads becomes AippConv2D, with the convolution's epilogue."""

    roots = ("Conv2D",)

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        x = node.inputs[0]
        maker = x.producer if x is not None else None
        return (node, maker) if maker is not None and maker.op_type == "Aipp" else None

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        from metadef.select.trial import Trial  # selection imports passes itself

        node, maker = nodes
        if not all(item.engine is None or item.engine.on_device for item in nodes):
            return "one of the two does not run on the device"
        if node.attrs["groups"] != 1:
            return "its channels are grouped"
        if node.inputs[1] is None or not node.inputs[1].is_const:
            return "its filter is no constant"
        trial = Trial(context.target, context.options.conv)
        if trial.must_be_winograd(node):
            return "Winograd's algorithm, which works on NC1HWC0, is asked for"
        if np.abs(normal_table(maker.attrs)[: maker.attrs["channels"]]).max() > HALF_MAX:
            return "what AIPP makes leaves the range of float16"
        return other_readers(graph, maker.output, node)

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        node, maker = nodes
        images = maker.inputs[0]
        assert images is not None
        node.op_type, node.attrs = "AippConv2D", {**maker.attrs, **node.attrs}
        node.name = graph.unique_name(maker.name + node.name)
        bypass(graph, maker, images)
        inherit(node, maker)
