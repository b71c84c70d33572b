"""All prototypes of the Ascend dialect: importing this package fills the registry.

Your own operators need no change here: build a :class:`metadef.op.OpDef` and pass it to :func:`metadef.op.register`.
"""

from metadef.ops import channels, cube, elementwise, logic, move, norm, pool, quantise, reduce, resize, slicing, sort

__all__ = [
    "channels", "cube", "elementwise", "logic", "move", "norm", "pool", "quantise", "reduce", "resize", "slicing",
    "sort",
]  # fmt: skip
