"""Other values in place of initializers: a model compiled again for them when they come, the last few kept.

Constants are folded and packed into the compiled weights, so that another value wants another compilation. An
initializer may be replaced where the model lists it among its inputs too: there it is only a default.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

if TYPE_CHECKING:
    from metadef.frontend.onnx_bind import Initializers

KEPT_VARIANTS = 4

Made = TypeVar("Made")
Values = Mapping[str, np.ndarray]


class Variants(Generic[Made]):
    """What ``make`` gives for values, by their names, types, shapes and contents.

    Args:
        source: path, bytes or ModelProto of the model; read again when initializers are first asked for.
        make: compiles the model with these values.
        kept: how many are kept ready; the one that was used longest ago goes first.
    """

    def __init__(self, source: Any, make: Callable[[Values], Made], kept: int = KEPT_VARIANTS) -> None:
        self._source = source
        self._make = make
        self._kept = kept
        self._made: OrderedDict[bytes, Made] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def _initializers(self) -> Initializers:
        from metadef.frontend.onnx_bind import initializers

        return initializers(self._source)

    @property
    def replaceable(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Element type and shape of the initializers that may be replaced, by name."""
        return self._initializers.replaceable

    def known(self, values: Values) -> dict[str, np.ndarray]:
        """The values that are meant for initializers, whether those may be replaced or not."""
        names = self._initializers.fixed | self._initializers.replaceable.keys()
        return {name: array for name, array in values.items() if name in names}

    def take(self, values: Values) -> Made:
        """The variant for these values, compiled if it is new.

        Raises:
            LabError: whatever the compiler says of these values.
        """
        key = content_key(values)
        with self._lock:
            if key not in self._made:
                self._made[key] = self._make({name: np.array(array) for name, array in values.items()})
                while len(self._made) > self._kept:
                    self._made.popitem(last=False)
            self._made.move_to_end(key)
            return self._made[key]


def content_key(values: Values) -> bytes:
    """A hash of names, element types, shapes and elements; the order of names does not matter."""
    digest = hashlib.blake2b(digest_size=16)
    for name, array in sorted(values.items()):
        digest.update(repr((name, array.dtype.name, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()
