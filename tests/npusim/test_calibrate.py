"""Calibration: constants that were changed behind a profile are found again; odd files are read or refused in words."""

import csv
import json

import pytest
from click.testing import CliRunner

from metadef.dtype import DType
from metadef.error import TargetError, UsageError
from metadef.format import TensorDesc
from metadef.kernel import Engine, Kernel
from metadef.target import load_target, replaced
from npusim.calibrate import calibrate, load_op_summary, predict
from npusim.commands.calibrate import calibrate as command
from npusim.op_summary import MeasuredTask
from npusim.report.calibration import write_target

COLUMNS = (
    "Op Name", "OP Type", "Task Duration(us)", "Block Dim", "Input Shapes", "Input Data Types", "Input Formats",
    "Output Shapes", "Output Data Types", "Output Formats",
)  # fmt: skip
TRUTH = {"launch.task_us": 2.1, "memory.hbm_efficiency": 0.6}
SIZES = ((1, 512), (8, 1024), (64, 1024), (256, 2048), (1024, 2048), (4096, 4096), (8192, 8192), (16384, 8192))


def rows(target) -> list[dict[str, str]]:
    """An op_summary of element-wise tasks, softmax and products as the chip would take them."""
    found = []
    for kind in ("Add", "Mul", "Relu", "Exp", "SoftmaxV2"):
        for shape in SIZES:
            desc = TensorDesc(shape, DType.FLOAT16)
            inputs = (desc, desc) if kind in ("Add", "Mul") else (desc,)
            attrs = {"axes": (-1,)} if kind == "SoftmaxV2" else {}
            task = MeasuredTask("", Kernel(kind, Engine.VECTOR, inputs, (desc,), attrs), 0, 1.0)
            text = ",".join(map(str, shape))
            found.append(
                dict(zip(COLUMNS, (
                    f"{kind}_{text}", kind, f"{predict(task, target):.4f}", "", f'"{";".join([text] * len(inputs))}"',
                    ";".join(["FLOAT16"] * len(inputs)), ";".join(["ND"] * len(inputs)), f'"{text}"', "FLOAT16", "ND",
                )))
            )  # fmt: skip
    return found


def write(path, table, columns=COLUMNS):
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(table)
    return path


@pytest.fixture(scope="module")
def target():
    return load_target("Ascend910B3")


@pytest.fixture(scope="module")
def table(target):
    return rows(replaced(target, TRUTH))


def test_changed_constants_are_found_again(target, table, tmp_path):
    loaded = load_op_summary(write(tmp_path / "op_summary_1.csv", table), target)
    assert len(loaded.tasks) == len(table) and not loaded.skipped
    result = calibrate(loaded, target, tuple(TRUTH))
    for key, value in TRUTH.items():
        assert result.moved[key][1] == pytest.approx(value, rel=0.03)
    before, after = result.figures(result.before), result.figures(result.after)
    assert after.median < 0.02 < before.median
    path = write_target(result, tmp_path / "Mine.yaml", "op_summary_1.csv", "Ascend910B3")
    mine = load_target(str(path))
    assert mine.soc == "Mine" and mine.value("launch.task_us") == pytest.approx(2.1, rel=0.03)
    assert mine.value("memory.l2_tb_s") == target.value("memory.l2_tb_s")


def test_odd_rows_are_left_out_and_counted(target, table, tmp_path):
    broken = [
        {**table[0], "Task Duration(us)": "fast"}, {**table[1], "Input Shapes": '"1,x"'}, {"Op Name": "cut"},
        {**table[2], "OP Type": "FlashAttentionScore"}, {**table[3], "Task Duration(us)": "0"},
    ]  # fmt: skip
    loaded = load_op_summary(write(tmp_path / "odd.csv", table[:8] + broken), target)
    assert len(loaded.tasks) == 8 and sum(loaded.skipped.values()) == len(broken)
    assert loaded.skipped["of type FlashAttentionScore"] == 1


@pytest.mark.parametrize("text", ["", "nonsense", "a,b\n1,2\n", "\x00\x01\x02"])
def test_nonsense_is_refused_in_words(target, tmp_path, text):
    path = tmp_path / "nonsense.csv"
    path.write_text(text)
    with pytest.raises(UsageError):
        load_op_summary(path, target)
    with pytest.raises(UsageError, match="cannot read"):
        load_op_summary(tmp_path / "absent.csv", target)


def test_columns_may_be_missing_or_of_the_newer_spelling(target, table, tmp_path):
    few = [name for name in COLUMNS if name not in ("Op Name", "Input Formats", "Output Formats", "Block Dim")]
    assert len(load_op_summary(write(tmp_path / "few.csv", table, few), target).tasks) == len(table)
    with pytest.raises(UsageError, match="without Task Duration"):
        load_op_summary(write(tmp_path / "none.csv", table, [name for name in few if "Task" not in name]), target)


def test_a_table_without_rows_is_told_from_one_without_columns(target, tmp_path):
    with pytest.raises(UsageError, match="too few rows"):
        load_op_summary(write(tmp_path / "op_summary.csv", [], COLUMNS), target)


@pytest.mark.parametrize("key", ["cores.coupled", "numerics.overflow", "cube.macs_per_cycle"])
def test_only_numbers_are_fitted(target, table, tmp_path, key):
    loaded = load_op_summary(write(tmp_path / "op_summary.csv", table), target)
    with pytest.raises(TargetError, match=f"constant '{key}' of .* is no number"):
        calibrate(loaded, target, [key])


def test_the_chips_own_file_is_never_written_over(table, tmp_path):
    chip = tmp_path / "Ascend910B3_calibrated.yaml"
    chip.write_text("inherits: Ascend910B3\nsoc: Ascend910B3\n")
    words = [str(write(tmp_path / "op_summary.csv", table)), "--soc", str(chip)]
    with pytest.raises(UsageError, match="would overwrite a file that is read"):
        raise CliRunner().invoke(command, words, standalone_mode=False).exception
    assert chip.read_text() == "inherits: Ascend910B3\nsoc: Ascend910B3\n"


def test_command_writes_target_and_picture(table, tmp_path):
    path = write(tmp_path / "op_summary_2.csv", table[::3])
    outcome = CliRunner().invoke(
        command, [str(path), "--soc", "Ascend910B3", "--constant", "launch.task_us", "--json"], standalone_mode=False
    )
    assert outcome.exception is None
    found = json.loads(outcome.output)
    assert found["after"]["median"] <= found["before"]["median"] and len(found["tasks"]) == len(table[::3])
    assert (tmp_path / "Ascend910B3_calibrated.yaml").exists() and (tmp_path / "Ascend910B3_calibrated.png").exists()
