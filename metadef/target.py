"""Target: what a chip is, as one immutable value. The chip enters compiler and simulator only through it.

Constants come from ``targets/*.yaml``; each leaf is ``{value, source, sure}``. A file may inherit from another and
state only what differs (null takes a group or constant away); users pass the path of their own file to
:func:`load_target`. Other names of the same chip stand under ``also``. A target compares and hashes by its name and the
hash of its constants, so costs may be memoised.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import marshal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from metadef.dtype import DType
from metadef.error import Problem, TargetError, near_misses, suggest
from metadef.files import cache_folder, read_sealed, write_sealed

SURENESS = ("measured", "vendor", "inferred", "unknown")
DEFAULT_SOC = "Ascend910B3"
_FIRST_GENERATION = "Ascend910B-30core"
_HERE = Path(__file__).parent / "targets"
_LEAF_KEYS = {"value", "source", "sure"}
_MOST = 1e15
"""Of a constant; a hundred thousand times the largest there is."""
_POSITIVE = ("cores", "memory")
_COUNTS = ("cores.cube", "cores.vector")
_LEAST = {"buffers.UB": 256}
"""One repeat of the vector unit: no tile is smaller."""
_REQUIRED_GROUPS = (
    "cores",
    "numerics",
    "buffers",
    "cube",
    "paths",
    "memory",
    "alignment",
    "launch",
    "sync",
    "vector",
    "energy",
)


def known_targets() -> list[str]:
    """Names of the chips that come with the package, sorted."""
    return sorted(path.stem for path in _HERE.glob("*.yaml"))


@cache
def other_names() -> Mapping[str, str]:
    """What chips that come with the package are called besides their names, and the chip that is meant."""
    return {str(other): name for name in known_targets() for other in _parse(_HERE / f"{name}.yaml").get("also", ())}


def load_target(soc: str) -> Target:
    """The chip of that name (or another name of it), or of the YAML file at that path.

    Raises:
        TargetError: the name is unknown or means several parts, or the file is wrong (all faults at once).
    """
    if soc.endswith((".yaml", ".yml")) or "/" in soc:
        return _load_path(Path(soc))
    return _load_name(soc)


def chip_of(soc: str, given: str | None) -> Target:
    """The chip that something was compiled for: ``given``, a name or a file, where it is that chip; else by its name.

    Raises:
        TargetError: as :func:`load_target`; the chip is none of the package's, and its file is not given.
    """
    target = load_target(given) if given is not None else None
    if target is not None and target.soc == soc:
        return target
    if soc not in known_targets():
        hint = "give the chip's own file: --soc PATH.yaml"
        raise TargetError(f"'{soc}' is no chip of the package", expected=", ".join(known_targets()), hint=hint)
    return load_target(soc)


def replaced(target: Target, values: Mapping[str, Any]) -> Target:
    """The chip with other values of some constants (dotted keys).

    Raises:
        TargetError: the chip has no such constant.
    """
    constants = dict(target.constants)
    for key, value in values.items():
        target.value(key)
        constants[key] = Constant(value, "changed", "unknown")
    return _build({"soc": target.soc, "family": target.family, "paths": target.paths}, constants, target)


@dataclass(frozen=True)
class Constant:
    """One constant with where it comes from and how sure it is (one of ``SURENESS``)."""

    value: Any
    source: str
    sure: str


@dataclass(frozen=True)
class DataPath:
    """A DMA path: a transfer holds its pipe for max(issue, bytes / rate); data is there ``latency_cycles`` later.

    The ``cold`` pair adds to the latency and replaces the rate for bytes that miss L2.
    """

    name: str
    latency_cycles: int
    cold_latency_cycles: int
    issue_cycles: int
    bytes_per_cycle: float
    cold_bytes_per_cycle: float
    sustained_bytes_per_cycle: float
    burst_cycles: int
    request_bytes: int


@dataclass(frozen=True, eq=False)
class Target:
    """A chip. ``constants`` maps dotted keys (``paths.GM->UB.latency_cycles``) to :class:`Constant`.

    Rates are bytes per core-clock cycle and core unless the key says ``tb_s`` (10^12 bytes per second, whole chip).
    ``base`` is the chip that a user's file, or :func:`replaced`, changes: kernels tuned for it run here too.
    """

    soc: str
    family: str
    content_hash: str
    constants: Mapping[str, Constant]
    coupled: bool
    has_fixpipe: bool
    cube_cores: int
    vector_cores: int
    clock_mhz: float
    overflow: str
    buffer_bytes: Mapping[str, int]
    granule_bytes: Mapping[str, int]
    cube_dtypes: frozenset[DType]
    paths: Mapping[str, DataPath] = field(repr=False)
    base: Target | None = field(default=None, repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Target) and (self.soc, self.content_hash) == (other.soc, other.content_hash)

    def __hash__(self) -> int:
        return hash((self.soc, self.content_hash))

    def value(self, key: str) -> Any:
        """A constant by dotted key.

        Raises:
            TargetError: this chip has no such constant.
        """
        constant = self.constants.get(key)
        if constant is None:
            raise TargetError(f"{self.soc} has no constant '{key}'", hint=suggest(key, self.constants))
        return constant.value

    def number(self, key: str) -> float:
        """A constant that is a number, by dotted key.

        Raises:
            TargetError: this chip has no such constant, or it is a switch, a text or a table.
        """
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TargetError(f"constant '{key}' of {self.soc} is no number", got=repr(value))
        return float(value)

    def c0(self, dtype: DType) -> int:
        """Channel block of blocked formats, in elements."""
        return int(self.value("numerics.c0").get(dtype.label, 32 // dtype.bytes))

    def fractal_k(self, dtype: DType) -> int:
        """K extent of one cube fractal, in elements. Raises TargetError if the cube cannot multiply the type."""
        return int(self._of_cube("cube.fractal_k", dtype))

    def macs_per_cycle(self, dtype: DType) -> int:
        """Multiply-accumulates per cycle of one core. Raises TargetError if the cube cannot multiply the type."""
        return int(self._of_cube("cube.macs_per_cycle", dtype))

    def fractal_cycles(self, dtype: DType) -> int:
        """Cycles of one 16 x 16 x fractal_k product."""
        return max(1, 256 * self.fractal_k(dtype) // self.macs_per_cycle(dtype))

    def _of_cube(self, key: str, dtype: DType) -> int:
        table = self.value(key)
        if dtype.label not in table:
            advice = "use --precision fp16" if dtype is DType.FLOAT else "cast the operands"
            raise TargetError(
                f"the cube of {self.soc} does not multiply {dtype.label}",
                expected=", ".join(table),
                got=dtype.label,
                hint=advice,
            )
        return table[dtype.label]

    def path(self, name: str) -> DataPath:
        """A DMA path such as ``GM->UB``. Raises TargetError if the chip lacks it."""
        if name not in self.paths:
            raise TargetError(f"{self.soc} has no path '{name}'", hint=suggest(name, self.paths))
        return self.paths[name]

    def vector_instruction(self, mnemonic: str, width_bytes: int) -> tuple[int, int]:
        """Cycles of (the first 256-byte repeat, each further one) for elements of 2 or 4 bytes.

        Raises:
            TargetError: the instruction is not in the table.
        """
        table = self.value(f"vector.instructions.{mnemonic}")
        first, further = table[4 if width_bytes >= 4 else 2]
        return int(first), int(further)

    @property
    def has_registers(self) -> bool:
        """Whether the vector unit computes in registers, a list of instructions as one function, not from UB to UB."""
        return bool(self.value("vector.registers"))

    @property
    def has_direct_path(self) -> bool:
        """Whether results of a cube core pass straight into UB of its vector cores, which are cores of their own."""
        return not self.coupled and "L0C->UB" in self.paths

    @property
    def vector_share(self) -> int:
        """Vector cores that belong to a cube core."""
        return max(self.vector_cores // self.cube_cores, 1)

    @property
    def vector_mnemonics(self) -> list[str]:
        """Instructions of the vector table, sorted."""
        head = "vector.instructions."
        return sorted(key.removeprefix(head) for key in self.constants if key.startswith(head))

    @property
    def device_bytes(self) -> int:
        """Size of global memory."""
        return int(self.value("memory.device_bytes"))

    @property
    def hbm_bytes_per_cycle(self) -> float:
        """What global memory sustains for all cores together, reads and writes."""
        rate = self.value("memory.hbm_nominal_tb_s") * self.value("memory.hbm_efficiency")
        return rate * 1e6 / self.clock_mhz

    @property
    def l2_bytes_per_cycle(self) -> float:
        """What L2 serves to all cores together."""
        return self.value("memory.l2_tb_s") * 1e6 / self.clock_mhz

    @property
    def hbm_tb_per_s(self) -> float:
        """Sustained bandwidth of global memory behind L2, 10^12 bytes per second."""
        return self.hbm_bytes_per_cycle * self.clock_mhz / 1e6

    @property
    def l2_tb_per_s(self) -> float:
        """Bandwidth of L2 for all cores together, 10^12 bytes per second."""
        return self.l2_bytes_per_cycle * self.clock_mhz / 1e6

    @property
    def peak_tflops(self) -> float:
        """Peak of the cubes in fp16, 10^12 operations per second (a multiply-add counts two)."""
        return 2 * self.macs_per_cycle(DType.FLOAT16) * self.cube_cores * self.clock_mhz / 1e6

    def cores(self, on_cube: bool) -> int:
        """Cores that run a cube or a vector kernel."""
        return self.cube_cores if on_cube else self.vector_cores

    def cycles(self, us: float) -> int:
        """Core cycles of a time in microseconds."""
        return round(us * self.clock_mhz)


@cache
def _load_name(soc: str) -> Target:
    known = known_targets()
    meant = [name for other, name in other_names().items() if other.lower() == soc.lower()]
    if soc in known or meant:
        return _load_path(_HERE / f"{soc if soc in known else meant[0]}.yaml")
    if soc.lower() == "ascend910b":
        parts = [name for name in known if name.startswith("Ascend910B") and name != _FIRST_GENERATION]
        raise TargetError(
            "'Ascend910B' names a first-generation part with 30 cores (910A family), not the A2 generation",
            expected=", ".join(parts),
            got=soc,
            hint=f"name the part, as npu-smi prints it; {_FIRST_GENERATION} is the first-generation part itself",
        )
    close = near_misses(soc, known)
    hint = suggest(soc, known) + (f" known: {', '.join(known)};" if close else ";")
    raise TargetError(f"unknown chip '{soc}'", got=soc, hint=hint + " a path to your own YAML file works too")


def _load_path(path: Path) -> Target:
    tree = _read(path, ())
    constants: dict[str, Constant] = {}
    problems: list[Problem] = []
    _flatten(tree, "", constants, problems, str(path))
    problems += [
        Problem(f"{path}: group '{group}' is missing", hint="inherit from a complete file, such as Ascend910B1")
        for group in _REQUIRED_GROUPS
        if group not in tree
    ]
    if path.parent != _HERE:
        problems += _misfits(constants, str(path))
    if problems:
        raise TargetError(problems)
    parent = None if path.parent == _HERE else _ancestor(path, _parse(path).get("inherits"))
    try:
        return _build(tree, constants, None if parent is None else _load_path(parent))
    except (KeyError, TypeError, ValueError) as error:
        raise TargetError(f"{path}: {error!r} is missing or wrong", hint="compare with Ascend910B1.yaml") from error


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """The file's tree laid over its ancestors'."""
    if path in seen:
        raise TargetError(f"{path} inherits from itself", got=" -> ".join(map(str, (*seen, path))))
    tree = _parse(path)
    ancestor = _ancestor(path, tree.pop("inherits", None))
    return tree if ancestor is None else _merge(_read(ancestor, (*seen, path)), tree)


def _ancestor(path: Path, name: str | None) -> Path | None:
    """The file that one inherits from: beside it, or of the package (which may have the file's own name)."""
    if name is None:
        return None
    beside = path.parent / f"{name}.yaml"
    return beside if beside.exists() and not beside.samefile(path) else _HERE / f"{name}.yaml"


def _parse(path: Path) -> dict[str, Any]:
    """A file's own tree. What became of a text is kept in the cache: YAML takes longer than all else of a chip."""
    try:
        text = path.read_bytes()
        kept = cache_folder() / "chips" / hashlib.sha256(sys.version.encode() + text).hexdigest()[:24]
        body = read_sealed(kept)
        tree = _from_yaml(text) if body is None else marshal.loads(body)
    except (OSError, ValueError) as error:
        raise TargetError(
            f"cannot read the chip file {path}", got=str(error), hint=f"known chips: {', '.join(known_targets())}"
        ) from None
    if not isinstance(tree, dict):
        raise TargetError(f"{path} is no mapping", expected="groups of constants", got=type(tree).__name__)
    if body is None:
        # A tree may hold what marshal does not know (dates).
        with contextlib.suppress(ValueError):
            write_sealed(kept, marshal.dumps(tree))
    return tree


def _from_yaml(text: bytes) -> Any:
    """Raises ValueError where the text is no YAML."""
    import yaml

    try:
        # libyaml's parser, where it is there, takes a tenth of the time.
        return yaml.load(text.decode(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, item in over.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(item, dict) and "value" not in item:
            merged[key] = _merge(old, item)
        elif item is None:
            merged.pop(key, None)
        else:
            merged[key] = item
    return merged


def _flatten(
    tree: Mapping[str, Any], prefix: str, into: dict[str, Constant], problems: list[Problem], place: str
) -> None:
    for key, item in tree.items():
        name = f"{prefix}{key}"
        if not prefix and not isinstance(item, dict):
            continue
        if not isinstance(item, dict):
            problems.append(Problem(f"{place}: '{name}' is bare", expected="{value, source, sure}", got=repr(item)))
        elif "value" not in item:
            _flatten(item, f"{name}.", into, problems, place)
        elif set(item) != _LEAF_KEYS or item["sure"] not in SURENESS:
            problems.append(
                Problem(
                    f"{place}: '{name}' needs value, source and sure",
                    expected=" or ".join(SURENESS),
                    got=str(item.get("sure")),
                )
            )
        else:
            into[name] = Constant(item["value"], str(item["source"]), item["sure"])


def _misfits(constants: Mapping[str, Constant], place: str) -> list[Problem]:
    """Constants that are of another kind than the same ones of the chips that come with the package."""
    found = []
    for name, constant in constants.items():
        expected = _unlike(constant.value, _examples().get(name, constant.value))
        group = name.partition(".")[0]
        if not expected and group in _POSITIVE and not isinstance(constant.value, bool) and constant.value == 0:
            expected = "more than 0"
        if not expected and name in _COUNTS and constant.value % 1:
            expected = "a whole number"
        if not expected and name in _LEAST and constant.value < _LEAST[name]:
            expected = f"at least {_LEAST[name]}"
        if expected:
            found.append(Problem(f"{place}: '{name}' does not fit", expected=expected, got=repr(constant.value)))
    return found


@cache
def _examples() -> Mapping[str, Any]:
    """A value of every constant that the chips of the package have."""
    return {name: item.value for soc in known_targets() for name, item in _load_name(soc).constants.items()}


def _unlike(value: Any, example: Any) -> str:
    """What would be of the same kind as the example; "" if the value is."""
    if isinstance(example, bool | str):
        kind = "true or false" if isinstance(example, bool) else "a text"
        return "" if type(value) is type(example) else kind
    if isinstance(example, list):
        fits = isinstance(value, list) and len(value) == len(example)
        return "" if fits and not any(map(_unlike, value, example)) else f"{len(example)} numbers"
    if isinstance(example, dict):
        keys = set(example)  # widths in bytes are what they are, element types differ from chip to chip
        alike = isinstance(value, dict) and (set(value) == keys or all(isinstance(key, str) for key in (*value, *keys)))
        first = next(iter(example.values()), 0)
        fits = alike and not any(_unlike(item, first) for item in value.values())
        return "" if fits else f"a mapping such as {example}"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "" if is_number and 0 <= value <= _MOST else f"a number from 0 to {_MOST:g}"


def _build(tree: Mapping[str, Any], constants: Mapping[str, Constant], base: Target | None) -> Target:
    def value(key: str) -> Any:
        return constants[key].value

    def group(name: str) -> dict[str, int]:
        return {
            key.removeprefix(f"{name}."): int(item.value)
            for key, item in constants.items()
            if key.startswith(f"{name}.")
        }

    paths = {
        name: DataPath(name, *(value(f"paths.{name}.{part}") for part in list(DataPath.__annotations__)[1:]))
        for name in tree["paths"]
    }
    if value("numerics.overflow") not in ("inf", "saturate"):
        raise ValueError("numerics.overflow must be 'inf' or 'saturate'")
    text = json.dumps({key: item.value for key, item in constants.items()}, sort_keys=True, default=str)
    return Target(
        soc=str(tree["soc"]),
        family=str(tree.get("family", "")),
        content_hash=hashlib.sha256(text.encode()).hexdigest()[:16],
        constants=MappingProxyType(dict(constants)),
        coupled=bool(value("cores.coupled")),
        has_fixpipe=bool(value("cores.fixpipe")),
        cube_cores=int(value("cores.cube")),
        vector_cores=int(value("cores.vector")),
        clock_mhz=float(value("cores.clock_mhz")),
        overflow=value("numerics.overflow"),
        buffer_bytes=MappingProxyType(group("buffers")),
        granule_bytes=MappingProxyType(group("granules")),
        cube_dtypes=frozenset(DType.parse(label) for label in value("cube.macs_per_cycle")),
        paths=MappingProxyType(paths),
        base=base,
    )
