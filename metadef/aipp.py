"""AIPP as ATC's ``--insert_op_conf`` configures it: what a file of ``aipp_op`` blocks says, checked line by line.

A block stands for one input of the model. Its keys, ranges and defaults are in :data:`KEYS`; what it means for an input
of a given shape is :meth:`AippOp.attrs`, the attributes of the operator ``Aipp`` (``metadef.ops.aipp``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from metadef.error import Problem, UsageError, suggest
from metadef.format import Shape
from metadef.ops.geometry import PICTURE_BYTES

CODE = "E10052"
BLOCK = "aipp_op"
_MOST_PIXELS = 4096
_MOST_PADDING = 32
_HALF_MAX = 65504.0
_MOST_BYTES = 256 << 10
"""Of a file: a block of every key takes about one thousand."""


@dataclass(frozen=True)
class Key:
    """A key of a block: ``int``, ``float`` (kept as float16), ``bool`` or ``str``, its default and
    range or choices."""

    kind: type
    default: Any = None
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()


def _numbered(name: str, numbers: list[str], key: Key) -> dict[str, Key]:
    return {f"{name}{number}": key for number in numbers}


_SIZE, _SWITCH, _BYTE = Key(int, 0, 0, _MOST_PIXELS), Key(bool, False), Key(int, 0, 0, 255)
_CELLS = [f"r{row}c{column}" for row in range(3) for column in range(3)]
_THREE, _FOUR = ([str(number) for number in range(count)] for count in (3, 4))
_SIDES = ("top", "bottom", "left", "right")

KEYS: dict[str, Key] = {
    "aipp_mode": Key(str, None, choices=("static", "dynamic")),
    "related_input_rank": Key(int, 0, 0, 1 << 31),
    "related_input_name": Key(str, ""),
    "input_format": Key(str, None, choices=tuple(PICTURE_BYTES)),
    "src_image_size_w": _SIZE,
    "src_image_size_h": _SIZE,
    "crop": _SWITCH,
    "load_start_pos_w": _SIZE,
    "load_start_pos_h": _SIZE,
    "crop_size_w": _SIZE,
    "crop_size_h": _SIZE,
    "padding": _SWITCH,
    **{f"{side}_padding_size": Key(int, 0, 0, _MOST_PADDING) for side in _SIDES},
    "padding_value": Key(float, 0.0, -_HALF_MAX, _HALF_MAX),
    "rbuv_swap_switch": _SWITCH,
    "ax_swap_switch": _SWITCH,
    "csc_switch": _SWITCH,
    **{f"matrix_{cell}": Key(int, 256 * (cell[1] == cell[3]), -32677, 32676) for cell in _CELLS},
    **_numbered("input_bias_", _THREE, _BYTE),
    **_numbered("output_bias_", _THREE, _BYTE),
    **_numbered("mean_chn_", _FOUR, _BYTE),
    **_numbered("min_chn_", _FOUR, Key(float, 0.0, 0, 255)),
    **_numbered("var_reci_chn_", _FOUR, Key(float, 1.0, -_HALF_MAX, _HALF_MAX)),
}
"""Keys of static AIPP. A size of 0 is taken from the model's input."""

_ELSEWHERE = {
    "max_src_image_size": "it belongs to dynamic AIPP",
    "resize": "scale the picture before it is fed",
    "resize_output_w": "scale the picture before it is fed",
    "resize_output_h": "scale the picture before it is fed",
    "single_line_mode": "leave it out: it says how the unit reads its lines, and changes no value",
    "raw_rgbir_to_f16_n": "it is for sensors' raw pictures, which are not read here",
}
"""Keys that ATC knows and this compiler does not follow, and what to do."""
_OTHER_FORMATS = ("ARGB8888_U8", "AYUV444_U8", "YUYV_U8", "YUV422SP_U8", "RAW10", "RAW12", "RAW16", "RGB16", "RGB20")


@dataclass(frozen=True)
class AippOp:
    """One block: the values of all keys (defaults filled in), and for messages where it stands."""

    values: Mapping[str, Any]
    place: str = field(default="aipp_op", compare=False)

    @classmethod
    def of(cls, **given: Any) -> AippOp:
        """A static block from Python: keys as in the file.

        Raises:
            UsageError: unknown keys or values, all at once.
        """
        values, problems = _checked([(name, value, BLOCK) for name, value in given.items()], BLOCK)
        if problems:
            raise UsageError(problems)
        return cls(values)

    def numbers(self, name: str, count: int) -> tuple[Any, ...]:
        """The values of ``name`` with 0, 1, … behind."""
        return tuple(self.values[f"{name}{number}"] for number in range(count))

    def attrs(self, shape: Shape) -> dict[str, Any]:
        """Attributes of an ``Aipp`` that makes an input (N, C, H, W); its type is left open.

        Raises:
            UsageError: sizes do not fit, all of them at once.
        """
        v, border = self.values, self._border
        room, source = self._room(shape), self._source(shape)
        start = (v["load_start_pos_h"], v["load_start_pos_w"]) if v["crop"] else (0, 0)
        stated = (v["crop_size_h"], v["crop_size_w"]) if v["crop"] else source
        cut = (stated[0] or room[0], stated[1] or room[1])
        if problems := self._misfits(shape, border, source, start, cut):
            raise UsageError(problems)
        return {
            "input_format": v["input_format"],
            "channels": shape[1],
            "crop_size": cut,
            "load_start_pos": start,
            "padding": border,
            "matrix": tuple(v[f"matrix_{cell}"] for cell in _CELLS),
            "input_bias": self.numbers("input_bias_", 3),
            "output_bias": self.numbers("output_bias_", 3),
            **{name: self.numbers(f"{name}_", 4) for name in ("mean_chn", "min_chn", "var_reci_chn")},
            **{name: v[name] for name in ("padding_value", "rbuv_swap_switch", "ax_swap_switch", "csc_switch")},
        }

    def images_shape(self, shape: Shape) -> Shape:
        """Shape of the pictures (bytes) that are fed in place of an input (N, C, H, W); after :meth:`attrs`."""
        h, w = self._source(shape)
        layout = self.values["input_format"]
        return shape[0], h * 3 // 2 if layout == "YUV420SP_U8" else h, w, PICTURE_BYTES[layout]

    @property
    def _border(self) -> tuple[int, ...]:
        """Top, bottom, left, right."""
        return tuple(self.values[f"{side}_padding_size"] if self.values["padding"] else 0 for side in _SIDES)

    def _room(self, shape: Shape) -> tuple[int, int]:
        """Height and width of an input without its border."""
        top, bottom, left, right = self._border
        return shape[2] - top - bottom, shape[3] - left - right

    def _source(self, shape: Shape) -> tuple[int, int]:
        """Height and width of the pictures: those of the input where none are stated."""
        room = self._room(shape)
        return self.values["src_image_size_h"] or room[0], self.values["src_image_size_w"] or room[1]

    def _misfits(
        self, shape: Shape, border: tuple[int, ...], source: tuple[int, int], start: tuple[int, int],
        cut: tuple[int, int],
    ) -> list[Problem]:  # fmt: skip
        problems = []
        before, after = border[::2], border[1::2]
        halved = self.values["input_format"] == "YUV420SP_U8"
        for at, letter in enumerate("hw"):
            made = cut[at] + before[at] + after[at]
            if cut[at] < 1:
                text = f"padding leaves no pixel of the picture along {letter.upper()}"
                got = f"{before[at]} and {after[at]} of {shape[2 + at]}"
                problems.append(Problem(text, CODE, port=self.place, got=got))
            elif made != shape[2 + at]:
                text = f"AIPP makes {made} pixels along {letter.upper()}, the model's input has {shape[2 + at]}"
                hint = f"crop_size_{letter} (or src_image_size_{letter} without crop) plus padding must be that"
                problems.append(Problem(text, CODE, port=self.place, got=f"{cut[at]} and padding", hint=hint))
            if start[at] + cut[at] > source[at]:
                text = f"the cut ends {start[at] + cut[at]} pixels along {letter.upper()}, the picture has {source[at]}"
                hint = f"load_start_pos_{letter} + crop_size_{letter} may be src_image_size_{letter} at most"
                problems.append(Problem(text, CODE, port=self.place, hint=hint))
            if halved and any(value % 2 for value in (source[at], start[at], cut[at])):
                text = f"sizes and places of YUV420SP_U8 must be even along {letter.upper()}"
                got = f"picture {source[at]}, start {start[at]}, cut {cut[at]}"
                problems.append(Problem(text, CODE, port=self.place, got=got))
        return problems


def read_insert_op_conf(path: str | Path) -> tuple[AippOp, ...]:
    """The blocks of an AIPP configuration file.

    Raises:
        UsageError: the file cannot be read (E10410), or what is wrong in it by line (E10052), all at once.
    """
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES:,} bytes")
        text = content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read AIPP configuration '{path}'", code="E10410", got=str(error)) from None
    return parse_insert_op_conf(text, str(path))


def parse_insert_op_conf(text: str, name: str = "insert_op_conf") -> tuple[AippOp, ...]:
    """The same from the text of the file; ``name`` is its name in messages. Raises UsageError."""
    reader = _Reader(text, name)
    blocks, problems = [], reader.problems
    for line, entries in reader.blocks():
        place = f"{name}:{line}"
        values, wrong = _checked(entries, place)
        problems += wrong
        blocks.append(AippOp(values, place))
    if not blocks and not problems:
        hint = "aipp_op { aipp_mode: static input_format: RGB888_U8 … }"
        problems.append(Problem("there is no aipp_op block", CODE, port=name, hint=hint))
    if problems:
        raise UsageError(problems)
    return tuple(blocks)


# -- reading -----------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""(?P<space>[\s,;]+|\#[^\n]*)|(?P<mark>[{}:])|(?P<text>"[^"\n]*"|'[^'\n]*')|(?P<word>[^\s,;{}:\#"']+)|(?P<bad>.)"""
)


@dataclass(frozen=True)
class _Token:
    text: str
    line: int
    quoted: bool = False


Entry = tuple[str, Any, str]
"""Key, value (text as it stands in the file, or a Python value), place."""


class _Reader:
    """Protocol buffer's text form, as far as these files go: blocks of ``key: value``."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.problems: list[Problem] = []
        self._tokens = list(self._split(text))
        self._at = 0

    def blocks(self) -> Iterator[tuple[int, list[Entry]]]:
        """(line, entries) of each ``aipp_op``; what is no block is noted and passed over."""
        while (token := self._take()) is not None:
            if token.text != BLOCK or token.quoted:
                self._note(f"'{token.text}' is no block", token.line, expected="aipp_op { … }")
                self._skip_past("}")
                continue
            self._take_mark(":")
            if self._take_mark("{"):
                yield token.line, list(self._entries(token.line))
            else:
                self._note("a block opens with '{'", token.line)

    def _entries(self, opened: int) -> Iterator[Entry]:
        while (token := self._take()) is not None:
            if token.text == "}" and not token.quoted:
                return
            if token.text in ("{", ":") or not self._take_mark(":"):
                self._note(f"'{token.text}' is not understood", token.line, expected="key: value")
                continue
            value = self._take()
            if value is None or (value.text in ("{", "}", ":") and not value.quoted):
                self._note(f"'{token.text}' has no value", token.line)
                self._at -= value is not None
                continue
            yield token.text, value, f"{self.name}:{token.line}"
        self._note("the block is never closed", opened, expected="}")

    def _split(self, text: str) -> Iterator[_Token]:
        line = 1
        for match in _TOKEN.finditer(text):
            if match.lastgroup == "bad":
                self._note("a quotation mark is never closed", line)
            elif match.lastgroup != "space":
                quoted = match.lastgroup == "text"
                yield _Token(match.group()[1:-1] if quoted else match.group(), line, quoted)
            line += match.group().count("\n")

    def _take(self) -> _Token | None:
        if self._at == len(self._tokens):
            return None
        self._at += 1
        return self._tokens[self._at - 1]

    def _take_mark(self, mark: str) -> bool:
        found = self._at < len(self._tokens) and self._tokens[self._at].text == mark
        self._at += found and not self._tokens[self._at].quoted
        return found

    def _skip_past(self, mark: str) -> None:
        while (token := self._take()) is not None and token.text != mark:
            pass

    def _note(self, text: str, line: int, expected: str = "") -> None:
        self.problems.append(Problem(text, CODE, port=f"{self.name}:{line}", expected=expected))


# -- checking ----------------------------------------------------------------------------------------------------------


def _checked(entries: list[Entry], block: str) -> tuple[dict[str, Any], list[Problem]]:
    """Values of all keys, and what is wrong with those that were given."""
    values, problems = {name: key.default for name, key in KEYS.items()}, []
    seen: dict[str, str] = {}
    for name, given, place in entries:
        try:
            if name in seen:
                raise ValueError(f"'{name}' stands at {seen[name]} already", "", "give it once")
            seen[name] = place
            values[name] = _value(name, given)
        except ValueError as error:
            text, expected, hint = error.args
            got = given.text if isinstance(given, _Token) else repr(given)
            problems.append(Problem(text, CODE, port=place, expected=expected, got=got, hint=hint))
    if not problems:
        problems = _contradictions(values, block)
    return values, problems


def _contradictions(values: Mapping[str, Any], block: str) -> list[Problem]:
    """What is wrong with a block of values that are right each by itself."""
    if values["aipp_mode"] == "dynamic":
        hint = "write the parameters of the pictures into a static block, one model for each kind of picture"
        return [Problem("dynamic AIPP is not supported", "E10055", port=block, expected="aipp_mode: static", hint=hint)]
    problems = []
    for name in ("aipp_mode", "input_format"):
        if values[name] is None:
            expected = " or ".join(KEYS[name].choices)
            problems.append(Problem(f"'{name}' is missing", CODE, port=block, expected=expected))
    if values["related_input_name"] and values["related_input_rank"]:
        hint = "leave one of the two out"
        problems.append(Problem("the input is stated by name and by rank", CODE, port=block, hint=hint))
    return problems


def _value(name: str, given: Any) -> Any:
    """A key's value. Raises ValueError(text, expected, hint)."""
    if name in _ELSEWHERE:
        if name == "resize" and _text(given) in ("false", "0"):
            return False
        raise ValueError(f"'{name}' is not supported", "", _ELSEWHERE[name])
    if name not in KEYS:
        raise ValueError(f"AIPP has no key '{name}'", "", suggest(name, KEYS))
    key = KEYS[name]
    text = _text(given)
    if key.kind is bool:
        if text not in ("true", "false", "0", "1"):
            raise ValueError(f"'{name}' is a switch", "true or false", "")
        return text in ("true", "1")
    if key.kind is str:
        return _word(name, key, text)
    return _number(name, key, text)


def _text(given: Any) -> str:
    return given.text if isinstance(given, _Token) else str(given).lower() if isinstance(given, bool) else str(given)


def _word(name: str, key: Key, text: str) -> str:
    if not key.choices:
        return text
    if text in _OTHER_FORMATS and name == "input_format":
        raise ValueError(f"pictures of {text} are not supported", " or ".join(key.choices), "convert the picture first")
    if text not in key.choices:
        raise ValueError(f"'{name}' has no such value", " or ".join(key.choices), suggest(text, key.choices))
    return text


def _number(name: str, key: Key, text: str) -> Any:
    expected = f"{'a whole number' if key.kind is int else 'a number'} from {key.low:g} to {key.high:g}"
    try:
        number = key.kind(text if key.kind is int else text.removesuffix("f"))
    except ValueError:
        raise ValueError(f"'{name}' is no such number", expected, "") from None
    if not key.low <= number <= key.high:
        raise ValueError(f"'{name}' is out of range", expected, "")
    return float(np.float16(number)) if key.kind is float else number
