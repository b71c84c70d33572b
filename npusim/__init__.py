"""npusim: an Ascend NPU in software. It runs what metadef compiles: real numbers, cycles and bytes.

Example::

    from npusim import InferenceSession, SessionOptions

    session = InferenceSession("model.onnx", SessionOptions(soc="Ascend910B3", precision="origin"))
    outputs = session.run(None, {"x": array})
    session.profile.tasks, session.profile.cycles, session.profile.plot_memory()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npusim.session import InferenceSession, SessionOptions

__all__ = ["InferenceSession", "SessionOptions"]


def __getattr__(name: str) -> Any:
    """Public names are imported at first use, so that ``npusim --help`` stays quick."""
    if name in __all__:
        from npusim import session

        return getattr(session, name)
    raise AttributeError(f"module 'npusim' has no attribute '{name}'")
