"""Prototypes of the Ascend dialect, a module for each family of operators.

The registry is filled when somebody first asks it (``metadef.op``): running a compiled model needs the modules that say
how a task's numbers hang together (``geometry``, ``numeric``), no prototypes. Your own operators need no change here:
build a :class:`metadef.op.OpDef` and pass it to :func:`metadef.op.register`.
"""

from functools import cache
from importlib import import_module

FAMILIES = (
    "aipp", "aipp_conv", "channels", "cube", "elementwise", "logic", "move", "norm", "pool", "quantise", "reduce",
    "resize", "slicing", "sort",
)  # fmt: skip


@cache
def load_families() -> None:
    """Import all families, each of which registers its prototypes."""
    for name in FAMILIES:
        import_module(f"{__name__}.{name}")
