"""npusim: an Ascend NPU in software. It runs what metadef compiles: real numbers, cycles and bytes."""

from __future__ import annotations

from typing import Any

__all__ = ["InferenceSession", "SessionOptions"]


def __getattr__(name: str) -> Any:
    """The front door is imported when it is first asked for, so that the command line starts quickly."""
    if name in __all__:
        from npusim import session

        return getattr(session, name)
    raise AttributeError(f"module 'npusim' has no attribute '{name}'")
