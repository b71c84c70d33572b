"""Device memory: regions and addresses, feeds and results, poison."""

from __future__ import annotations

import mmap
from dataclasses import replace

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.error import ContractError, DeviceFault, UsageError
from metadef.format import Format, TensorDesc, pack
from metadef.kernel import Engine, Kernel
from metadef.program import Binding, Operand, Program, Region, Span, Task
from npusim.device import POISON, Device, page_buffer, release_pages

PLAIN = TensorDesc((3, 5), DType.FLOAT)
BLOCKED = TensorDesc((1, 3, 2, 2), DType.FLOAT16, Format.NCHW, Format.NC1HWC0, 16)


def operand(region: Region, address: int, desc: TensorDesc, name: str = "t", tensor: int = 0) -> Operand:
    return Operand(tensor, name, region, address, desc.payload_bytes, desc)


def program() -> Program:
    weight = operand(Region.WEIGHTS, 0, BLOCKED, "w", 1)
    middle = operand(Region.ARENA, 512, BLOCKED, "m", 2)
    image, scores = operand(Region.IO, 1536, PLAIN, "in", 3), operand(Region.IO, 2048, PLAIN, "out", 4)
    kernel = Kernel("Relu", Engine.VECTOR, (BLOCKED,), (BLOCKED,))
    task = Task(0, "relu", kernel, (weight,), (middle,))
    bindings = [Binding("image", image)], [Binding("scores", scores)]
    return Program("p", "Ascend910B3", [task], *bindings, weights_bytes=512, arena_bytes=1024, io_bytes=1024)


@pytest.fixture
def device() -> Device:
    return Device(program(), np.arange(512, dtype=np.uint8))


def test_addresses_of_all_regions_meet_their_bytes(device: Device):
    device.memory[:] = np.arange(device.memory.size) % 251
    assert device.bytes_at(3, 4).tolist() == [3, 4, 5, 6]
    assert device.bytes_at(512 + 300, 3).tolist() == [49, 50, 51]
    for address in (0, 511, 512, 2559):
        there = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * 1).from_address(device.host_address(address)))
        assert there[0] == device.bytes_at(address, 1)[0]
    assert device.memory.ctypes.data % mmap.PAGESIZE == 0


@pytest.mark.parametrize(("address", "size"), [(-1, 1), (511, 2), (2559, 2), (9999, 1)])
def test_bytes_outside_a_region_are_a_fault(device: Device, address: int, size: int):
    with pytest.raises(DeviceFault, match="borders"):
        device.bytes_at(address, size)
    if address < 0 or address > 2560:
        with pytest.raises(DeviceFault, match="outside"):
            device.host_address(address)


def test_tensors_are_read_in_both_layouts(device: Device, rng: np.random.Generator):
    middle = program().tasks[0].outputs[0]
    values = rng.standard_normal((1, 3, 2, 2)).astype(np.float16)
    device.write_tensor(middle, pack(values, BLOCKED))
    assert device.read_tensor(middle).shape == (1, 1, 2, 2, 16)
    assert np.array_equal(device.read_origin(middle), values)


def test_weights_are_read_only(device: Device):
    weight = program().tasks[0].inputs[0]
    assert weight is not None
    with pytest.raises(DeviceFault, match="read-only"):
        device.write_tensor(weight, np.zeros((1, 1, 2, 2, 16), np.float16))


def test_short_weights_are_refused():
    with pytest.raises(ContractError, match="too short"):
        Device(program(), np.zeros(100, np.uint8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"address": 3000}, "outside the arena"),
        ({"address": 513}, "multiple of its element size"),
        ({"payload_bytes": 64}, "wrong size"),
        ({"region": Region.IO}, "outside the io"),
    ],
)
def test_operands_out_of_place_are_refused_at_load(change: dict[str, object], message: str):
    bad = program()
    task = bad.tasks[0]
    bad.tasks[0] = replace(task, outputs=(replace(task.outputs[0], **change),))
    with pytest.raises(ContractError, match=message):
        Device(bad, np.zeros(512, np.uint8))


def test_workspaces_must_lie_in_the_arena():
    bad = program()
    bad.tasks[0] = replace(bad.tasks[0], workspaces=(Span(1500, 512),))
    with pytest.raises(ContractError, match="workspace"):
        Device(bad, np.zeros(512, np.uint8))


def test_feeds_go_in_and_results_come_out(device: Device, rng: np.random.Generator):
    big = rng.standard_normal((5, 6)).astype(np.float32)
    strided = big[:, ::2].T
    device.copy_in({"image": strided})
    device.read_tensor(device.program.outputs[0].operand)[...] = device.read_tensor(device.program.inputs[0].operand)
    (result,) = device.copy_out()
    assert np.array_equal(result, strided)
    result[...] = 0
    assert np.array_equal(device.copy_out(["scores"])[0], strided)
    foreign = strided.astype(">f4")
    device.copy_in({"image": foreign})
    assert np.array_equal(device.read_tensor(device.program.inputs[0].operand), strided)


def test_all_wrong_feeds_are_named_at_once(device: Device):
    with pytest.raises(UsageError) as caught:
        device.copy_in({"imagee": np.zeros((3, 5), np.float32)})
    assert "did you mean 'image'" in str(caught.value)
    assert "an input is missing" in str(caught.value)


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        (np.zeros((5, 3), np.float32), r"float32\[5, 3\]"),
        (np.zeros((3, 5), np.float64), r"astype\('float32'\)"),
        ([[0] * 5] * 3, "wrong element type"),
    ],
)
def test_wrong_feeds_say_what_was_expected(device: Device, feed: object, message: str):
    with pytest.raises(UsageError, match=message):
        device.copy_in({"image": feed})


def test_unknown_outputs_are_named(device: Device):
    with pytest.raises(UsageError, match="did you mean 'scores'"):
        device.copy_out(["score"])


def test_reads_of_poison_are_a_fault(device: Device, rng: np.random.Generator):
    device.poison_arena()
    middle = device.program.tasks[0].outputs[0]
    assert np.all(np.isnan(device.read_tensor(middle)))
    reader = Task(1, "second", Kernel("Relu", Engine.VECTOR, (BLOCKED,), ()), (middle,), ())
    with pytest.raises(DeviceFault, match="no task has written") as caught:
        device.check_reads(reader)
    assert "second" in str(caught.value) and "'m'" in str(caught.value)
    device.write_tensor(middle, pack(rng.standard_normal((1, 3, 2, 2)).astype(np.float16), BLOCKED))
    device.check_reads(reader)


def test_poison_is_not_a_number_in_every_float_type():
    raw = np.full(8, POISON, np.uint16)
    for dtype in (np.float16, np.float32, np.float64):
        assert np.all(np.isnan(raw.view(dtype)))


def test_poisoning_results_spares_what_the_task_reads(device: Device):
    middle = device.program.tasks[0].outputs[0]
    device.memory[...] = 1
    inplace = Task(0, "inplace", Kernel("Relu", Engine.VECTOR, (BLOCKED,), (BLOCKED,)), (middle,), (middle,))
    device.poison_results(inplace)
    assert np.all(device.memory == 1)
    device.poison_results(device.program.tasks[0])
    assert np.all(np.isnan(device.read_tensor(middle)))


def test_mapped_pages_can_be_let_go_and_read_again(tmp_path):
    path = tmp_path / "weights.bin"
    data = np.arange(1 << 18, dtype=np.uint32)
    data.tofile(path)
    mapped = np.memmap(path, np.uint8, "r")
    view = mapped[5000:900_000]
    before = view.sum()
    release_pages(view)
    assert view.sum() == before
    anonymous = page_buffer(1 << 16)
    anonymous[:] = 7
    release_pages(anonymous)
    assert np.all(anonymous == 7)
