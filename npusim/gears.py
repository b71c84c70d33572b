"""The gears of a loaded model: which one takes a call, how its inputs are padded, how its outputs are cut back.

All gears share one device memory and one set of worker threads; each is made ready when it is first needed. A padded
batch is cut back to the rows that were asked for. Padding of other axes must be allowed, for it may change values (a
convolution sees zeros beyond the border instead of the border itself).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from metadef.error import Problem, UsageError
from metadef.gears import GearChoice, choose_gear, input_shapes, varying_axes
from metadef.program import Program
from npusim.device import check_pictures
from npusim.loaded import LoadedProgram

if TYPE_CHECKING:
    from npusim.elastic import Elastic, ElasticProgram

PADDING = ("batch", "all", "none")


Loader = Callable[[Program, "LoadedProgram | None", "ElasticProgram | None"], LoadedProgram]


class GearBox:
    """Programs by gear, the largest first.

    Args:
        programs: of one model, over common regions.
        load: makes a program ready, beside one to take turns with; for a shape beyond the gears with its own weights
            and memory.
        padding: ``batch`` pads axis 0 only, ``all`` every axis that varies, ``none`` wants exact gears.
    """

    def __init__(self, programs: Mapping[str, Program], load: Loader, padding: str = "batch") -> None:
        if padding not in PADDING:
            raise UsageError(f"unknown padding '{padding}'", expected=" or ".join(PADDING))
        self.programs = dict(programs)
        self.padding = padding
        self.elastic: Elastic | None = None
        self._load = load
        self._axes = varying_axes(self.programs) if len(self.programs) > 1 else []
        self._loaded: dict[str, LoadedProgram] = {}

    @property
    def geared(self) -> bool:
        """Whether there is anything to choose from."""
        return len(self.programs) > 1

    def loaded(self, key: str) -> LoadedProgram:
        """The gear's program, made ready at the first call."""
        if key not in self._loaded:
            beside = next(iter(self._loaded.values()), None)
            self._loaded[key] = self._load(self.programs[key], beside, None)
        return self._loaded[key]

    def choose(self, feeds: Mapping[str, np.ndarray]) -> GearChoice:
        """The gear for these feeds, or a program compiled for their very shape where that is allowed.

        Raises:
            UsageError: too large for every gear, or padding is needed where it is not allowed.
        """
        first = next(iter(self.programs.values()))
        check_pictures(first.inputs, feeds)
        shapes = {name: np.shape(array) for name, array in feeds.items()}
        try:
            return self._nearest(shapes)
        except UsageError:
            if self.elastic is None or set(shapes) != set(input_shapes(first)):
                raise
        made, gone = self.elastic.program(shapes)
        for key in gone:
            self._loaded.pop(key, None)
        if made.key not in self._loaded:
            self._loaded[made.key] = self._load(made.program, next(iter(self._loaded.values())), made)
        elements = sum(prod(shape) for shape in shapes.values())
        return GearChoice(made.key, True, elements, elements)

    def _nearest(self, shapes: Mapping[str, tuple[int, ...]]) -> GearChoice:
        choice = choose_gear(self.programs, shapes)
        if choice.exact:
            return choice
        wanted = input_shapes(self.programs[choice.key])
        short = [
            (name, axis) for name, axis in self._axes if name in shapes and shapes[name][axis] < wanted[name][axis]
        ]
        if self.padding == "none" or (self.padding == "batch" and any(axis for _, axis in short)):
            raise UsageError([self._not_exact(shapes[name], wanted[name], name, choice) for name, _ in short[:1]])
        self._check_cut(choice, short)
        return choice

    def pad(self, feeds: Mapping[str, np.ndarray], choice: GearChoice) -> dict[str, np.ndarray]:
        """Feeds with zeros behind, at the end of every axis, up to the gear's shapes."""
        if choice.exact:
            return dict(feeds)
        wanted = input_shapes(self.programs[choice.key])
        padded: dict[str, np.ndarray] = {}
        for name, value in feeds.items():
            array = np.asarray(value)
            room = wanted.get(name, array.shape)
            if array.shape != room and array.ndim == len(room):
                larger = np.zeros(room, array.dtype)
                larger[tuple(map(slice, array.shape))] = array
                array = larger
            padded[name] = array
        return padded

    def cut(self, name: str, output: np.ndarray, feeds: Mapping[str, np.ndarray], choice: GearChoice) -> np.ndarray:
        """The part of an output that belongs to the feeds as they were."""
        if choice.exact:
            return output
        sizes = list(output.shape)
        for axis in range(output.ndim):
            follows = self._followed(name, axis)
            if follows is None:
                continue
            source, gear_size = follows
            have = np.shape(feeds[source[0]])[source[1]]
            sizes[axis] = -(-output.shape[axis] * have // gear_size[choice.key])
        return output[tuple(map(slice, sizes))]

    def close(self) -> None:
        """Stop the worker threads."""
        for loaded in self._loaded.values():
            loaded.close()

    def _followed(self, output: str, axis: int) -> tuple[tuple[str, int], dict[str, int]] | None:
        """The input axis that an output's axis is proportional to over all gears, and that axis by gear."""
        lengths = {key: _output_shape(program, output)[axis] for key, program in self.programs.items()}
        if len(set(lengths.values())) == 1:
            return None
        # Height and width often vary together: the axis of the same position is meant.
        for name, at in sorted(self._axes, key=lambda source: source[1] != axis):
            sizes = {key: input_shapes(program)[name][at] for key, program in self.programs.items()}
            first = next(iter(self.programs))
            if all(lengths[key] * sizes[first] == lengths[first] * sizes[key] for key in sizes):
                return (name, at), sizes
        return None

    def _check_cut(self, choice: GearChoice, short: list[tuple[str, int]]) -> None:
        """A padded batch must come back out of every output, else its rows would be mixed with the padding's."""
        if not any(axis == 0 for _, axis in short):
            return
        problems = []
        for binding in self.programs[choice.key].outputs:
            shape = binding.operand.desc.origin_shape
            if not shape or self._followed(binding.name, 0) is None:
                text = "the output does not follow the batch: a padded batch cannot be cut back"
                problems.append(Problem(text, port=binding.name, got=str(list(shape)), hint="feed an exact gear"))
        if problems:
            raise UsageError(problems)

    def _not_exact(self, have: tuple[int, ...], want: tuple[int, ...], name: str, choice: GearChoice) -> Problem:
        return Problem(
            f"no gear has this shape; the nearest is {choice.key}",
            port=name,
            expected=str(list(want)),
            got=str(list(have)),
            hint=f"resize or pad the input to {list(want)} ({choice.waste:.1%} of it would be padding), or allow "
            'padding="all" (--pad-to-gear)',
        )


def _output_shape(program: Program, name: str) -> tuple[int, ...]:
    return next(item.operand.desc.origin_shape for item in program.outputs if item.name == name)
