"""Gears: several sets of input shapes in one model, each with its own task list, over one arena and one set of weights.

ATC's three options say what may vary: the batch, height and width, or every open dimension. The front end's open axes
are bound once per gear; choosing a gear for the shapes of a call works on the finished programs alone, so that it
serves loaded ``.om`` files too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from metadef.error import Problem, UsageError
from metadef.program import Program

MIN_GEARS, MAX_GEARS = 2, 100
KIND_ATTR = "gear_kind"
_KINDS = {"batch": "dynamic_batch_size", "size": "dynamic_image_size", "dims": "dynamic_dims"}

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class GearSpec:
    """What varies (``batch``, ``size`` or ``dims``) and the values of every gear, in the user's order."""

    kind: str
    values: tuple[tuple[int, ...], ...]

    @property
    def option(self) -> str:
        """ATC's name of the option."""
        return _KINDS[self.kind]

    @staticmethod
    def key(values: Sequence[int]) -> str:
        """A gear's name: its values as ATC writes them."""
        return ",".join(map(str, values))


def parse_gears(dynamic_batch_size: str = "", dynamic_image_size: str = "", dynamic_dims: str = "") -> GearSpec | None:
    """The gears of ATC's options: ``1,2,4`` or ``320,320;480,480`` (height, width) or ``1,128;1,256``; None for none.

    Raises:
        UsageError: two options at once (E10009), no numbers, fewer than 2 (E10035) or more than 100 (E10036), lengths
            that differ (E10037), sizes that are not positive (E10038), the same gear twice (E10039).
    """
    given = {"batch": dynamic_batch_size, "size": dynamic_image_size, "dims": dynamic_dims}
    used = [kind for kind, text in given.items() if text]
    if not used:
        return None
    if len(used) > 1:
        names = " and ".join(_KINDS[kind] for kind in used)
        raise UsageError(f"{names} exclude each other", code="E10009", hint="give one of them")
    (kind,) = used
    groups = given[kind].split("," if kind == "batch" else ";")
    try:
        values = tuple(tuple(int(item) for item in group.split(",")) for group in groups if group.strip())
    except ValueError:
        sample = {"batch": "1,2,4", "size": "320,320;480,480", "dims": "1,128;1,256"}[kind]
        text = f"{_KINDS[kind]} wants whole numbers"
        raise UsageError(text, code="E10001", expected=sample, got=given[kind]) from None
    spec = GearSpec(kind, values)
    problems = list(_spec_problems(spec))
    if problems:
        raise UsageError(problems)
    return spec


def _spec_problems(spec: GearSpec) -> list[Problem]:
    problems = []
    count, lengths = len(spec.values), {len(value) for value in spec.values}
    if count < MIN_GEARS:
        text = f"{spec.option} has {count} gear(s)"
        problems.append(Problem(text, "E10035", expected="at least 2", hint="bind the shape with --shape instead"))
    if count > MAX_GEARS:
        problems.append(Problem(f"{spec.option} has {count} gears", "E10036", expected=f"at most {MAX_GEARS}"))
    if len(lengths) > 1 or (spec.kind == "size" and lengths - {2}):
        expected = "height,width in each" if spec.kind == "size" else "as many sizes in each"
        code = "E10020" if spec.kind == "size" else "E10037"
        got = "; ".join(map(GearSpec.key, spec.values))
        problems.append(Problem(f"gears of {spec.option} differ in length", code, expected=expected, got=got))
    for value in spec.values:
        if min(value, default=0) <= 0:
            problems.append(Problem("a gear holds a size that is not positive", "E10038", got=GearSpec.key(value)))
        if spec.values.count(value) > 1:
            problems.append(Problem("a gear is given twice", "E10039", got=GearSpec.key(value)))
    return list(dict.fromkeys(problems))


def gear_shapes(spec: GearSpec, declared: Mapping[str, Sequence[int | str]]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Concrete shapes of the inputs that vary, by gear; the gear with most elements first.

    ``declared`` has every input's sizes; an open axis is a text (its symbol, or "") or -1.

    Raises:
        UsageError: the open axes are not those that the option may bind (E10018, E10019, E10031, E10040, E10045).
    """
    open_axes = {name: [axis for axis, size in enumerate(sizes) if _is_open(size)] for name, sizes in declared.items()}
    if not any(open_axes.values()):
        sample = next(iter(declared), "x")
        hint = f"mark what varies with -1: --shape {sample}={_sample(spec, declared.get(sample, ()))}"
        code = "E10031" if spec.kind == "batch" else "E10040"
        raise UsageError(f"no input has an open dimension for {spec.option}", code=code, hint=hint)
    bind = {"batch": _bind_batch, "size": _bind_size, "dims": _bind_dims}[spec.kind]
    gears = {spec.key(value): bind(value, declared, open_axes) for value in spec.values}
    return dict(sorted(gears.items(), key=lambda item: -sum(map(prod, item[1].values()))))


def _is_open(size: int | str) -> bool:
    return isinstance(size, str) or size < 0


def _sample(spec: GearSpec, sizes: Sequence[int | str]) -> str:
    marked = {"batch": (0,), "size": (2, 3), "dims": tuple(range(len(sizes)))}[spec.kind]
    return ",".join("-1" if axis in marked else str(size) for axis, size in enumerate(sizes))


def _filled(sizes: Sequence[int | str], values: Mapping[int, int], name: str, code: str) -> tuple[int, ...]:
    """A shape with its open axes filled; an open batch that no gear binds is 1."""
    left = [axis for axis, size in enumerate(sizes) if _is_open(size) and axis not in values and axis]
    if left:
        hint = f"bind the others: --shape {name}=" + ",".join(
            "-1" if axis in values else ("…" if _is_open(size) else str(size)) for axis, size in enumerate(sizes)
        )
        raise UsageError(
            f"axis {left[0]} stays open beside the gears", code=code, port=name, got=str(list(sizes)), hint=hint
        )
    return tuple(values.get(axis, 1 if _is_open(size) else int(size)) for axis, size in enumerate(sizes))


def _bind_batch(
    value: Sequence[int], declared: Mapping[str, Sequence[int | str]], open_axes: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    found = {}
    for name, axes in open_axes.items():
        if axes and axes[0] == 0:
            found[name] = _filled(declared[name], {0: value[0]}, name, "E10018")
    if not found:
        shown = "; ".join(f"{name} {list(sizes)}" for name, sizes in declared.items())
        raise UsageError("no input has an open axis 0", code="E10031", got=shown, hint="use dynamic_dims")
    return found


def _bind_size(
    value: Sequence[int], declared: Mapping[str, Sequence[int | str]], open_axes: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    found = {}
    for name, axes in open_axes.items():
        inner = [axis for axis in axes if axis]
        if not inner:
            continue
        if len(declared[name]) != 4 or len(inner) != 2:
            expected, got = "height and width open in a shape of rank 4", str(list(declared[name]))
            raise UsageError("the image size is not what is open", code="E10019", port=name, expected=expected, got=got)
        found[name] = _filled(declared[name], dict(zip(inner, value)), name, "E10019")
    if not found:
        raise UsageError("no input has an open height and width", code="E10019", hint="use dynamic_batch_size")
    return found


def _bind_dims(
    value: Sequence[int], declared: Mapping[str, Sequence[int | str]], open_axes: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    count = sum(map(len, open_axes.values()))
    if count != len(value):
        shown = "; ".join(f"{name} {list(declared[name])}" for name, axes in open_axes.items() if axes)
        expected = f"{count} sizes in every gear, one for each open dimension of {shown}"
        raise UsageError(
            "a gear does not fit the open dimensions", code="E10045", expected=expected, got=GearSpec.key(value)
        )
    rest = iter(value)
    return {
        name: _filled(declared[name], {axis: next(rest) for axis in axes}, name, "E10045")
        for name, axes in open_axes.items()
        if axes
    }


# -- choosing -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GearChoice:
    """The gear of one call. ``given`` and ``padded`` are elements of the inputs as fed and as the gear takes them."""

    key: str
    exact: bool
    given: int
    padded: int

    @property
    def waste(self) -> float:
        """Share of the gear's input elements that are padding, 0 to 1."""
        return 1.0 - self.given / self.padded if self.padded else 0.0


def choose_gear(programs: Mapping[str, Program], shapes: Shapes) -> GearChoice:
    """The gear that takes these inputs with the least padding.

    Raises:
        UsageError: no gear is large enough, or an axis that does not vary has another size; both values are named.
    """
    best: GearChoice | None = None
    given = sum(prod(shape) for shape in shapes.values())
    for key, program in programs.items():
        wanted = input_shapes(program)
        if all(_holds(wanted[name], shape) for name, shape in shapes.items() if name in wanted):
            padded = sum(prod(shape) for name, shape in wanted.items() if name in shapes)
            if best is None or padded < best.padded:
                exact = all(tuple(shape) == wanted[name] for name, shape in shapes.items() if name in wanted)
                best = GearChoice(key, exact, given, padded)
    fixed = _fixed_problems(programs, shapes)
    if best is None or fixed:
        raise UsageError(fixed or _size_problems(programs, shapes))
    return best


def input_shapes(program: Program) -> dict[str, tuple[int, ...]]:
    """Shapes of a program's inputs by name."""
    return {binding.name: binding.operand.desc.origin_shape for binding in program.inputs}


def varying_axes(programs: Mapping[str, Program]) -> list[tuple[str, int]]:
    """Input axes (name, axis) whose size differs between the gears."""
    tables = [input_shapes(program) for program in programs.values()]
    return [
        (name, axis)
        for name, shape in tables[0].items()
        for axis in range(len(shape))
        if len({table[name][axis] for table in tables}) > 1
    ]


def _holds(wanted: Sequence[int], shape: Sequence[int]) -> bool:
    return len(wanted) == len(shape) and all(have <= room for have, room in zip(shape, wanted))


def _fixed_problems(programs: Mapping[str, Program], shapes: Shapes) -> list[Problem]:
    """Axes that no gear varies must be met exactly."""
    varying = set(varying_axes(programs))
    problems = []
    for name, wanted in input_shapes(next(iter(programs.values()))).items():
        shape = tuple(shapes.get(name, wanted))
        if len(shape) != len(wanted):
            problems.append(
                Problem("a feed has the wrong rank", port=name, expected=str(list(wanted)), got=str(list(shape)))
            )
            continue
        for axis, (have, want) in enumerate(zip(shape, wanted)):
            if have != want and (name, axis) not in varying:
                text = f"axis {axis} has one size in every gear"
                problems.append(Problem(text, port=name, expected=str(want), got=str(have)))
    return problems


def _size_problems(programs: Mapping[str, Program], shapes: Shapes) -> list[Problem]:
    """Which axes exceed the largest gear, or that no single gear holds them together."""
    tables = {key: input_shapes(program) for key, program in programs.items()}
    problems = []
    for name, axis in varying_axes(programs):
        if name not in shapes:
            continue
        largest, have = max(table[name][axis] for table in tables.values()), shapes[name][axis]
        if have > largest:
            sizes = ", ".join(str(size) for size in sorted({table[name][axis] for table in tables.values()}))
            problems.append(
                Problem(
                    f"axis {axis} is {have}, the largest gear has {largest}",
                    port=name,
                    expected=f"at most {largest} (gears: {sizes})",
                    got=str(have),
                    hint=f"compile with a gear of at least {have}, or split the input",
                )
            )
    if problems:
        return problems
    shown = "; ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
    expected = " or ".join("; ".join(f"{name} {list(s)}" for name, s in table.items()) for table in tables.values())
    return [Problem("no gear holds all sizes at once", expected=expected, got=shown)]
