"""Targets: inheritance, errors that name the part, hashing, and that every constant states where it comes from."""

import pytest

from metadef import target
from metadef.dtype import DType
from metadef.error import TargetError
from metadef.target import DEFAULT_SOC, SURENESS, known_targets, load_target, other_names


@pytest.mark.parametrize("soc", known_targets())
def test_constants_state_source_and_sureness(soc):
    target = load_target(soc)
    assert target.soc == soc
    assert all(item.source and item.sure in SURENESS for item in target.constants.values())
    assert {"L1", "L0A", "L0B", "L0C", "UB", "BT"} <= set(target.buffer_bytes)


def test_published_facts():
    b1, b3, p3 = (load_target(name) for name in ("Ascend910B1", DEFAULT_SOC, "Ascend310P3"))
    assert (b1.cube_cores, b1.vector_cores, b1.clock_mhz) == (24, 48, 1850)
    assert (b3.cube_cores, b3.vector_cores, b3.clock_mhz) == (20, 40, 1800)
    assert (p3.coupled, p3.has_fixpipe, p3.overflow) == (True, False, "saturate")
    assert (b3.coupled, b3.has_fixpipe, b3.overflow) == (False, True, "inf")
    assert b3.buffer_bytes == b1.buffer_bytes and p3.buffer_bytes["L1"] == 1 << 20
    peak = b1.cube_cores * 2 * b1.macs_per_cycle(DType.FLOAT16) * b1.clock_mhz * 1e6
    assert peak == pytest.approx(364e12, rel=0.01)
    assert b1.hbm_bytes_per_cycle * b1.clock_mhz * 1e6 == pytest.approx(1.49e12, rel=0.01)


def test_channel_blocks_and_cube_types():
    b3, p3 = load_target("Ascend910B3"), load_target("Ascend310P3")
    assert [b3.c0(item) for item in (DType.FLOAT, DType.FLOAT16, DType.INT8)] == [8, 16, 32]
    assert p3.c0(DType.FLOAT) == 16
    assert b3.fractal_cycles(DType.FLOAT16) == 1 and b3.fractal_cycles(DType.FLOAT) == 2
    with pytest.raises(TargetError, match="--precision fp16"):
        p3.macs_per_cycle(DType.FLOAT)


def test_ascend910b_asks_which_part():
    with pytest.raises(TargetError) as caught:
        load_target("Ascend910B")
    text = str(caught.value)
    assert "30 cores" in text and all(f"Ascend910B{digit}" in text for digit in "1234")
    assert "Ascend910B-30core" in text
    assert load_target("Ascend910B-30core").cube_cores == 30


@pytest.mark.parametrize(
    ("soc", "cores", "clock_mhz", "tflops", "l2_bytes"),
    [
        ("Ascend910A", 32, 1000, 262.1, 32 << 20),
        ("Ascend910B-30core", 30, 900, 221.2, 32 << 20),
        ("Ascend910B2", 24, 1800, 353.9, 192 << 20),
        ("Ascend910B4", 20, 1500, 245.8, 96 << 20),
        ("Ascend310P1", 10, 1060, 86.84, 16 << 20),
        ("Ascend310P3", 8, 1060, 69.47, 16 << 20),
        ("Ascend310", 2, 680, 11.14, 8 << 20),
        ("Ascend950PR", 32, 1650, 432.5, 128 << 20),
    ],
)
def test_peaks_follow_from_the_platform_files(soc, cores, clock_mhz, tflops, l2_bytes):
    target = load_target(soc)
    assert (target.cube_cores, target.clock_mhz, target.value("memory.l2_bytes")) == (cores, clock_mhz, l2_bytes)
    assert target.peak_tflops == pytest.approx(tflops, rel=0.001)


def test_the_first_generation_saturates_and_has_no_fixpipe():
    target = load_target("Ascend910A")
    assert (target.coupled, target.has_fixpipe, target.overflow) == (True, False, "saturate")
    assert target.c0(DType.FLOAT) == 16 and DType.FLOAT not in target.cube_dtypes


def test_other_names_of_a_chip_mean_the_same_chip(tmp_path):
    chip = load_target("Ascend950PR")
    assert load_target("Ascend910_95") == load_target("ascend950") == chip
    assert other_names()["Ascend950"] == chip.soc and not set(other_names()) & set(known_targets())
    assert (chip.coupled, chip.has_registers, chip.has_direct_path) == (False, True, True)
    assert chip.buffer_bytes["UB"] == 248 << 10 and chip.value("memory.l2_line_bytes") == 128
    assert not any(load_target(name).has_registers for name in ("Ascend910B3", "Ascend310P3"))
    assert not any(load_target(name).has_direct_path for name in ("Ascend910B3", "Ascend310P3"))
    path = tmp_path / "Mine.yaml"
    path.write_text("inherits: Ascend950PR\nsoc: Mine\n")
    assert load_target(str(path)).has_registers


def test_unknown_name_has_near_misses():
    with pytest.raises(TargetError, match="did you mean 'Ascend310P3'"):
        load_target("Ascend310P")


def test_own_file_inherits_and_hashes_by_content(tmp_path):
    path = tmp_path / "Mine.yaml"
    text = "inherits: Ascend910B3\nsoc: Mine\ncores:\n  cube: {value: 10, source: test, sure: unknown}\n"
    path.write_text(text)
    mine, again = load_target(str(path)), load_target(str(path))
    assert mine.cube_cores == 10 and mine.vector_cores == 40
    assert mine == again and hash(mine) == hash(again)
    path.write_text(text.replace("value: 10", "value: 11"))
    assert load_target(str(path)) != mine


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("memory.l2_tb_s", "fast", "a number from 0"),
        ("memory.l2_tb_s", "-1", "a number from 0"),
        ("memory.l2_tb_s", ".nan", "a number from 0"),
        ("memory.l2_tb_s", "1.0e+40", "a number from 0"),
        ("memory.device_bytes", "0", "more than 0"),
        ("cores.cube", "true", "a number from 0"),
        ("cores.cube", "8.5", "a whole number"),
        ("cores.vector", "0.5", "a whole number"),
        ("buffers.UB", "0", "at least 256"),
        ("cores.coupled", "1", "true or false"),
        ("numerics.overflow", "3", "a text"),
        ("numerics.c0", "[8, 16]", "a mapping such as"),
        ("cube.macs_per_cycle", "{float16: many}", "a mapping such as"),
        ("vector.instructions.add", "{2: [1, 1]}", "a mapping such as"),
        ("vector.instructions.add", "{2: [1, 1], 4: [1]}", "a mapping such as"),
        ("vector.instructions.add", "{2: [1, 1], 4: [1, x]}", "a mapping such as"),
    ],
)
def test_constants_of_another_kind_are_named(tmp_path, name, value, expected):
    path = tmp_path / "Bad.yaml"
    *groups, key = name.split(".")
    head = "".join(f"{' ' * depth}{group}:\n" for depth, group in enumerate(groups))
    leaf = f"{' ' * len(groups)}{key}: {{value: {value}, source: x, sure: unknown}}\n"
    path.write_text(f"inherits: Ascend910B3\n{head}{leaf}")
    with pytest.raises(TargetError, match="does not fit") as caught:
        load_target(str(path))
    (problem,) = caught.value.problems
    assert f"'{name}'" in problem.message and expected in problem.expected


def test_constants_of_ones_own_are_taken_as_they_are(tmp_path):
    path = tmp_path / "Mine.yaml"
    path.write_text("inherits: Ascend910B3\nmine:\n  note: {value: text, source: x, sure: unknown}\n")
    assert load_target(str(path)).value("mine.note") == "text"


def test_faults_of_a_file_come_together(tmp_path):
    path = tmp_path / "Bad.yaml"
    path.write_text("inherits: Ascend910B3\ncores:\n  cube: 3\n  vector: {value: 1, source: x, sure: surely}\n")
    with pytest.raises(TargetError) as caught:
        load_target(str(path))
    assert len(caught.value.problems) == 2


def test_missing_constant_is_named():
    with pytest.raises(TargetError, match=r"memory\.l2_bytes"):
        load_target("Ascend910B1").value("memory.l2_byte")


def test_a_chip_file_is_parsed_once(tmp_path, monkeypatch):
    monkeypatch.setenv("NPUSIM_KERNEL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "Mine.yaml"
    path.write_text("inherits: Ascend910B3\nsoc: Mine\n")
    first = load_target(str(path))
    monkeypatch.setattr(target, "_from_yaml", lambda text: pytest.fail("parsed again"))
    assert load_target(str(path)) == first and dict(load_target(str(path)).constants) == dict(first.constants)
    for kept in (tmp_path / "cache" / "chips").iterdir():
        kept.write_bytes(b"damaged")
    monkeypatch.undo()
    assert load_target(str(path)) == first
