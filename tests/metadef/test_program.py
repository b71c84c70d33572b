"""Programs as JSON and as a listing, and the hazards that the checker must find."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadef.dtype import DType
from metadef.error import ContractError, ModelError
from metadef.format import Format, TensorDesc
from metadef.hazard import ByteOwners, check_program, find_hazards
from metadef.kernel import Buffer, CubeTile, Engine, FusedOp, Kernel, VectorTile
from metadef.program import Binding, Operand, Program, Region, Span, Task
from metadef.program_text import print_program, program_from_json, program_to_json, value_from_json, value_to_json
from metadef.target import load_target

TARGET = load_target("Ascend910B3")


@pytest.mark.parametrize("soc", ["Ascend910B3", "Ascend310P3"])
@pytest.mark.parametrize("precision", ["fp16"])
def test_json_is_lossless(small_compilation, soc, precision):
    program = small_compilation(soc, precision).model.program
    text = json.dumps(program_to_json(program), allow_nan=False)
    assert program_from_json(json.loads(text)) == program


def test_no_field_is_forgotten():
    """Every field of every value away from its default, so that a field that is not stored would show."""
    cube = CubeTile(16, 32, 48, 96, 2, 3, 4, 5, "a", False, False, True, (Buffer("a", "L1", 32, 64, 2),))
    desc = TensorDesc((1, 2, 3, 4), DType.INT8, Format.NHWC, Format.NC1HWC0, 32)
    kernel = Kernel(
        "T", Engine.AICPU, (None, desc), (desc,), {"a": 1}, (FusedOp("F", {"b": 2.5}, 1),), "winograd", cube, 7, "d",
        "because", 17,
    )  # fmt: skip
    item = Operand(9, "n", Region.IO, 512, desc.payload_bytes, desc)
    full = Task(3, "t", kernel, (None, item), (item,), (Span(64, 32),), ("o",), "layer", 2, (4,), (5,), (6,))
    vector = replace(kernel, tile=VectorTile(5, 6, 7, False, (Buffer("x", "UB", 0, 32, 1),), 8))
    other = replace(full, kernel=vector)
    whole = Program("p", "s", [full, other], [Binding("i", item)], [Binding("o", item)], 1, 2, 3, 4, 5, 6, "fp16", 7)
    for value in (cube, vector.tile, kernel, kernel.fused[0], desc, item, full, whole):
        for field in fields(value):
            default = field.default if field.default_factory is MISSING else field.default_factory()
            assert getattr(value, field.name) != default, f"{type(value).__name__}.{field.name} is not exercised"
    assert program_from_json(json.loads(json.dumps(program_to_json(whole)))) == whole


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from(DType),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_attribute_values_keep_value_and_type(value):
    again = value_from_json(json.loads(json.dumps(value_to_json(value), allow_nan=False)))
    assert again == value and type(again) is type(value)


def test_attribute_arrays_and_nan():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    again = value_from_json(json.loads(json.dumps(value_to_json(array))))
    np.testing.assert_array_equal(again, array)
    assert again.dtype == array.dtype
    words = np.array([["a", b"b"], ["", "c"]], object)
    np.testing.assert_array_equal(value_from_json(json.loads(json.dumps(value_to_json(words)))), words)
    assert math.isnan(value_from_json(value_to_json(math.nan)))


def test_what_has_no_json_form_is_named():
    with pytest.raises(ContractError, match="type object cannot be stored"):
        value_to_json(object())


@pytest.mark.parametrize("damage", ["descs", "kernels", "tasks", "soc", "inputs"])
def test_damaged_json_is_refused(small_compilation, damage):
    data = program_to_json(small_compilation().model.program)
    del data[damage]
    with pytest.raises(ModelError, match="task list is damaged"):
        program_from_json(data)


def test_wrong_references_and_versions_are_refused(small_compilation):
    data = program_to_json(small_compilation().model.program)
    with pytest.raises(ModelError, match="damaged"):
        program_from_json({**data, "descs": data["descs"][:1]})
    with pytest.raises(ModelError, match="unknown version") as caught:
        program_from_json({**data, "format_version": 99})
    assert "99" in str(caught.value)


# -- hazards ----------------------------------------------------------------------------------------------------------


def operand(tensor: int, address: int, count: int = 256, region: Region = Region.ARENA) -> Operand:
    return Operand(tensor, f"t{tensor}", region, address, 2 * count, TensorDesc((count,), DType.FLOAT16))


def task(index: int, reads: list[Operand], writes: list[Operand], **fields) -> Task:
    descs = tuple(item.desc for item in reads), tuple(item.desc for item in writes)
    kernel = Kernel("Add", Engine.VECTOR, *descs, tile=fields.pop("tile", None))
    return Task(index, f"task{index}", kernel, tuple(reads), tuple(writes), **fields)


def program(*tasks: Task) -> Program:
    return Program("p", "Ascend910B3", list(tasks), weights_bytes=1024, arena_bytes=8192, io_bytes=1024)


def messages(*tasks: Task) -> str:
    return "\n".join(map(str, find_hazards(program(*tasks), TARGET)))


WEIGHT = operand(0, 0, region=Region.WEIGHTS)


def test_listing(golden):
    conv = Kernel(
        "Conv2D",
        Engine.AICORE,
        (TensorDesc((1, 16, 8, 8), DType.FLOAT16, Format.NCHW, Format.NC1HWC0, 16), None),
        (TensorDesc((1, 16, 8, 8), DType.FLOAT16, Format.NCHW, Format.NC1HWC0, 16),),
        fused=(FusedOp("Relu"),),
        tile=CubeTile(64, 16, 16, 144, split_m=2, split_n=3, resident="b", double_l0c=True),
        block_dim=6,
    )
    item = Operand(2, "y", Region.ARENA, 2048, 2048, conv.outputs[0])
    host = Task(2, "host", Kernel("NonZero", Engine.HOST_CPU, (), (), domain=""), (), (), waits=(1,))
    listed = program(
        Task(0, "conv", conv, (operand(1, 1024), None), (item,), (Span(4096, 1024),)),
        task(1, [operand(1, 1024)], [operand(3, 6144)], tile=VectorTile(8, 32, 4), stream=1, records=(1,)),
        host,
    )
    listed.inputs = [Binding("x", operand(1, 1024))]
    listed.outputs = [Binding("z", operand(3, 6144))]
    golden(print_program(listed))


def test_compiled_programs_have_no_hazards(small_compilation):
    for soc in ("Ascend910B3", "Ascend310P3"):
        compiled = small_compilation(soc)
        check_program(compiled.model.program, compiled.target)


def test_overwritten_operand_is_found():
    first, second, third = operand(1, 1024), operand(2, 1280), operand(3, 4096)
    tasks = task(0, [WEIGHT], [first]), task(1, [WEIGHT], [second]), task(2, [first], [third])
    with pytest.raises(ContractError) as caught:
        check_program(program(*tasks), TARGET)
    text = str(caught.value)
    assert "'t2' has overwritten bytes 0x500 to 0x600" in text and "node 'task2' port 't1'" in text


def test_read_of_nothing_and_of_a_workspace_is_found():
    item = operand(1, 1024)
    assert "nothing has written bytes 0x400 to 0x600" in messages(task(0, [item], [operand(2, 4096)]))
    scratch = task(1, [WEIGHT], [operand(2, 4096)], workspaces=(Span(1024, 512),))
    assert "a workspace has overwritten" in messages(
        task(0, [WEIGHT], [item]), scratch, task(2, [item], [operand(3, 8000)])
    )


def test_in_place_and_partial_reuse_are_no_hazard():
    first, same, part = operand(1, 1024), operand(2, 1024), operand(3, 1024, 128)
    assert messages(task(0, [WEIGHT], [first]), task(1, [first], [same]), task(2, [WEIGHT], [part])) == ""


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (task(0, [WEIGHT], [operand(1, 512, region=Region.WEIGHTS)]), "may not write to the weights"),
        (task(0, [WEIGHT], [operand(1, 9100)]), "lies outside region arena"),
        (task(0, [operand(2, 1024)], [operand(1, 1280)]), "without covering it exactly"),
        (task(0, [operand(2, 1024, 512)], [operand(1, 1024)]), "without covering it exactly"),
        (task(0, [WEIGHT], [operand(1, 1024), operand(2, 1280)]), "results 't1' and 't2' overlap"),
        (task(0, [WEIGHT], [operand(1, 1024)], workspaces=(Span(1280, 64),)), "workspace overlaps 't1'"),
        (task(0, [WEIGHT], [operand(1, 1024)], workspaces=(Span(9000, 512),)), "workspace lies outside the arena"),
        (task(0, [WEIGHT], [replace(operand(1, 1024), payload_bytes=100)]), "size differs from the descriptor's"),
    ],
)
def test_misplaced_operands_are_found(bad, text):
    assert text in messages(bad)


@pytest.mark.parametrize(
    ("buffers", "text"),
    [
        ((Buffer("x", "UB", 16, 64),), "off its granule"),
        ((Buffer("x", "L0A", 0, 300, 2),), "off its granule"),
        ((Buffer("x", "UB", 0, 100_000, 2),), "does not fit"),
        ((Buffer("x", "UB", 0, 96, 2), Buffer("y", "UB", 160, 32)), "'x' and 'y' of UB overlap"),
        ((Buffer("x", "L2", 0, 32),), "does not fit"),
    ],
)
def test_misplaced_buffers_are_found(buffers, text):
    assert text in messages(task(0, [WEIGHT], [operand(1, 1024)], tile=VectorTile(1, 256, 1, buffers=buffers)))


def test_buffers_of_several_memories_do_not_meet():
    buffers = (Buffer("x", "UB", 0, 64, 2), Buffer("y", "UB", 128, 64), Buffer("z", "L1", 0, 64))
    assert messages(task(0, [WEIGHT], [operand(1, 1024)], tile=VectorTile(1, 256, 1, buffers=buffers))) == ""


def test_flags_must_pair():
    def steps(first: dict, second: dict) -> str:
        return messages(task(0, [WEIGHT], [operand(1, 1024)], **first), task(1, [WEIGHT], [operand(2, 4096)], **second))

    assert steps({"records": (7,)}, {"stream": 1, "waits": (7,)}) == ""
    assert "waits for event 7 that nothing before it records" in steps({"waits": (7,)}, {"stream": 1, "records": (7,)})
    assert "of its own stream" in steps({"records": (7,)}, {"waits": (7,)})
    assert "recorded, but nothing waits" in steps({"records": (7,)}, {})
    assert "a second time" in steps({"records": (7,)}, {"stream": 1, "records": (7,), "waits": (7,)})


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.integers(0, 5)), max_size=20), st.data())
def test_byte_owners_equal_a_plain_array(writes, data):
    owners, plain = ByteOwners(), [None] * 64
    for start, size, owner in writes:
        owners.write(start, start + size, owner)
        plain[start : start + size] = [owner] * size
    start = data.draw(st.integers(0, 60))
    end = data.draw(st.integers(start, 64))
    pieces = list(owners.owners(start, end))
    assert [owner for first, last, owner in pieces for _ in range(last - first)] == plain[start:end]
    assert all(first < last for first, last, _ in pieces)
