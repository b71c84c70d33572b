"""What commands refuse before anything is compiled: flags an offline model cannot follow, figures that are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from metadef.error import UsageError
from npusim.commands.build import compile_command
from npusim.commands.judge import bisect, check, compare
from npusim.commands.options import refuse_compiler_flags
from npusim.commands.run import run


def test_flags_of_the_compiler_are_refused_by_their_own_names() -> None:
    given = ["m.om", "--disable", "x", "--shape", "x=1", "--elastic", "--no-reuse", "--dynamic_batch_size", "1,2"]
    with pytest.raises(UsageError, match="--disable, --shape, --no-reuse, --elastic, --dynamic-batch-size"):
        CliRunner().invoke(run, given, catch_exceptions=False)
    with pytest.raises(UsageError, match="--dim"):
        CliRunner().invoke(compare, ["m.om", "--dim", "n=1"], catch_exceptions=False)
    refuse_compiler_flags("m.om", {"padding": "all", "no_reuse": False, "disabled": ()})
    refuse_compiler_flags("m.onnx", {"shapes": ("x=1",)})


def test_an_offline_model_is_not_compiled_again() -> None:
    with pytest.raises(UsageError, match="compiled already"):
        CliRunner().invoke(compile_command, ["m.om", "-o", "n.om"], catch_exceptions=False)


@pytest.mark.parametrize(("command", "flag"), [(compare, "--limit"), (compare, "--cosine"), (bisect, "--limit")])
@pytest.mark.parametrize("value", ["nan", "-2"])
def test_limits_are_numbers_within_reason(command, flag: str, value: str) -> None:
    answer = CliRunner().invoke(command, ["m.onnx", flag, value])
    assert answer.exit_code == 2 and flag in answer.output


@pytest.mark.parametrize("flag", ["--cosine", "--cycles", "--memory", "--tasks"])
def test_no_tolerance_of_a_golden_is_nan(flag: str) -> None:
    answer = CliRunner().invoke(check, ["m.onnx", "--golden", "g.json", flag, "nan"])
    assert answer.exit_code == 2 and "not a number" in answer.output


@pytest.mark.parametrize("command", [run, compare])
def test_what_can_only_be_planned_is_not_run(command, tmp_path: Path) -> None:
    case = tmp_path / "case.csv"
    case.write_text("id,lower,upper,size\n0,0,2,5\n")
    dump = tmp_path / "ge_proto_0_Build.txt"
    dump.write_text('graph {\n  name: "g"\n}\n')
    for path in (case, dump):
        with pytest.raises(UsageError, match="can be planned, but not run"):
            CliRunner().invoke(command, [str(path)], catch_exceptions=False)
