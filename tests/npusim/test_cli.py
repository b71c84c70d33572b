"""The command line: exit codes, JSON that is one object and nothing else, and errors that teach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npusim import cli
from npusim.data import digits_model, digits_samples
from npusim.kernels.cpu import describe, host
from tests.npusim.faulty import broken_models, save, small_model

REPO = Path(__file__).resolve().parents[2]
DIGITS = str(digits_model())
ONE = ("--dim", "batch=1")


@dataclass(frozen=True)
class Answer:
    """What a call of the program left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        """The one object on standard output."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


Call = Callable[..., Answer]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Runs ``npusim`` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Answer:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["npusim", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return Answer(code, out, err)

    return run


def refused(answer: Answer, *words: str, code: int = 2) -> None:
    """The call was refused: every word on standard error; on standard output nothing, or with --json the error."""
    assert answer.code == code and bool(answer.out) == ("--json" in sys.argv)
    if answer.out:
        (error,) = answer.json.values()
        assert error["exit_code"] == code and error["message"].strip() in answer.err
    assert answer.err.startswith(("npusim: [", "Usage: "))
    assert not [word for word in words if word.lower() not in answer.err.lower()], answer.err


# -- broken models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("missing", "does not exist"),
        ("truncated", "truncated.onnx"),
        ("empty", "empty"),
        ("text", "text.onnx"),
        ("unknown operator", "Relu"),
        ("cycle", "cycle"),
        ("duplicate", "'y'"),
        ("external", "weights.bin"),
    ],
)
def test_broken_models_are_refused(call: Call, tmp_path: Path, fault: str, word: str):
    path = broken_models(tmp_path)[fault]
    refused(call("run", path), "[model]" if fault != "unknown operator" else "[operator]", word)


@pytest.mark.parametrize("command", ["run", "profile", "plan", "compare", "align", "explain", "bisect"])
def test_every_command_refuses_a_broken_model(call: Call, tmp_path: Path, command: str):
    path = broken_models(tmp_path)["truncated"]
    refused(call(command, path, "--json"), "truncated.onnx")


def test_damaged_offline_models_are_refused(call: Call, tmp_path: Path):
    made = call("compile", DIGITS, *ONE, "-o", "digits.om", "--json")
    assert made.code == 0 and made.json["host_tasks"] == 0 and made.json["tasks"] > 5
    whole = Path("digits.om").read_bytes()
    for cut in (10, len(whole) // 2, len(whole) - 3):
        Path("cut.om").write_bytes(whole[:cut])
        refused(call("run", "cut.om"), "cut.om")
    flipped = bytearray(whole)
    for place in range(64, min(len(whole), 4000), 97):
        flipped[place] ^= 0x55
    Path("flipped.om").write_bytes(bytes(flipped))
    refused(call("run", "flipped.om"), "flipped.om")


# -- wrong calls -------------------------------------------------------------------------------------------------------


def test_wrong_feeds_are_refused_with_what_fits(call: Call, tmp_path: Path):
    model = small_model(tmp_path / "small.onnx")
    for name, array in (
        ("good", np.ones((2, 3), np.float32)),
        ("shape", np.ones((3, 2), np.float32)),
        ("dtype", np.ones((2, 3), np.float64)),
    ):
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / "text.npy").write_text("no array")
    assert call("run", model, "--input", "x=good.npy").code == 0
    refused(call("run", model, "--input", "z=good.npy"), "'z'", "known: x", "feed 'x'")
    refused(call("run", model, "--input", "x=shape.npy"), "shape", "[2, 3]", "[3, 2]", "--shape x=3,2")
    refused(call("run", model, "--input", "x=dtype.npy"), "element type", "astype('float32')")
    refused(call("run", model, "--input", "x=gone.npy"), "cannot read input 'x'")
    refused(call("run", model, "--input", "x=text.npy"), "cannot read input 'x'")
    refused(call("run", model, "--input", "good.npy"), "NAME=VALUE")


def test_unknown_names_are_answered_with_near_misses(call: Call):
    refused(call("run", DIGITS, *ONE, "--soc", "Ascend910B"), "[target]", "Ascend910B3")
    refused(call("run", DIGITS, *ONE, "--disable", "RefineRunningFormat"), "RefineRunningFormat")
    refused(call("run", DIGITS, "--dim", "batch=two"), "whole numbers")
    refused(call("explain", DIGITS, "stemm", *ONE), "there is no node")
    refused(call("ops", "Cnov2D"), "Conv2D")
    refused(call("rum", DIGITS), "No such command")
    refused(call("run", DIGITS, "--precision", "fp8"), "fp16")
    refused(call("run", DIGITS, *ONE, "--seed", "-1"), "--seed")
    refused(call("align"), "--micro")
    refused(call("diff", DIGITS, *ONE), "--b-soc")


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/dev/full").exists(), reason="needs a place that cannot be written")
def test_places_that_cannot_be_written_are_named(call: Call, tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    model = small_model(tmp_path / "small.onnx")
    refused(call("run", model, "--out", "file/below"), "cannot write", "file/below")
    refused(call("compile", model, "-o", "/dev/full/x.om"), "cannot write")
    refused(call("profile", model, "--out", "file/below", "--json"), "cannot write")
    refused(call("check", model, "--golden", "file/golden.json", "--update"), "cannot write")


def test_the_model_itself_is_never_written_over(call: Call, tmp_path: Path):
    model = Path(small_model(tmp_path / "small.onnx"))
    before, alias = model.read_bytes(), tmp_path / "alias.om"
    alias.symlink_to(model)
    for output in (model, alias):
        refused(call("compile", model, "-o", output), "overwrite the model")
        refused(call("check", model, "--golden", output, "--update"), "overwrite the model")
    assert model.read_bytes() == before


def test_files_that_steer_and_feed_are_never_written_over(call: Call, tmp_path: Path):
    model = small_model(tmp_path / "small.onnx")
    compiling = ("compile", model, "--insert-op-conf", "aipp.cfg", "--fusion-switch-file", "switch.cfg", "-o")
    checking = ("check", model, "--input", "x=x.npy", "--update", "--golden")
    for words, name in ((compiling, "aipp.cfg"), (compiling, "switch.cfg"), (checking, "x.npy")):
        Path(name).write_text("kept")
        refused(call(*words, name), "overwrite a file that is read")
        assert Path(name).read_text() == "kept"
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for folder in (".", "./sub/..", str(tmp_path)):
        np.save("y.npy", x)
        refused(call("run", model, "--input", "x=y.npy", "--out", folder), "overwrite a file that is read")
        np.testing.assert_array_equal(np.load("y.npy"), x)
    assert not Path("sub").exists()


def test_commands_take_a_chip_of_ones_own(call: Call):
    Path("Mine.yaml").write_text("inherits: Ascend910B3\nsoc: Mine\n")
    assert call("compile", DIGITS, *ONE, "--soc", "./Mine.yaml", "-o", "m.om").code == 0
    for words in (("plan",), ("run",), ("explain",), ("align", "--residues", "256"), ("compare",), ("bisect",)):
        assert call(words[0], DIGITS, *words[1:], *ONE, "--soc", "./Mine.yaml").code == 0
    for command in ("run", "plan", "compare"):
        assert call(command, "m.om", "--soc", "Mine.yaml").code == 0
        refused(call(command, "m.om"), "--soc PATH.yaml")


def test_a_planner_case_is_never_written_over(call: Call):
    case = {"name": "c", "tensors": [{"id": 0, "lower": 0, "upper": 2, "size": 512}]}
    Path("plan.json").write_text(json.dumps(case))
    refused(call("plan", "plan.json", "--out", "."), "overwrite the model")
    assert json.loads(Path("plan.json").read_text()) == case


def test_full_disk_leaves_the_earlier_file(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = small_model(tmp_path / "small.onnx")
    assert call("check", model, "--golden", "g.json", "--update").code == 0
    before = Path("g.json").read_bytes()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    refused(call("check", model, "--golden", "g.json", "--update"), "No space left on device")
    assert Path("g.json").read_bytes() == before and not list(tmp_path.glob(".g.json*"))


def test_capacity_that_no_plan_keeps_leaves_with_one(call: Call):
    answer = call("plan", DIGITS, *ONE, "--capacity", "512")
    assert answer.code == 1 and "[plan]" in answer.err and answer.out == ""


def test_faults_of_ours_leave_without_a_traceback(call: Call, monkeypatch: pytest.MonkeyPatch):
    def broken(*args: object, **options: object) -> None:
        raise ZeroDivisionError("made for the test")

    monkeypatch.setattr("npusim.commands.run.open_model", broken)
    refused(call("run", DIGITS), "[internal]", "ZeroDivisionError", "NPUSIM_TRACEBACK")


@pytest.mark.parametrize("turned", [False, True])
def test_an_interrupt_is_told_as_one_even_where_a_library_turns_it_into_an_error(
    call: Call, monkeypatch: pytest.MonkeyPatch, turned: bool
):
    def interrupted(*args: object, **options: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            if turned:
                raise TypeError("cannot compare") from error
            raise

    monkeypatch.setattr("npusim.commands.run.open_model", interrupted)
    answer = call("run", DIGITS)
    assert answer.code == 130 and answer.out == "" and answer.err.strip().startswith("npusim: interrupted")


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["run", "profile"])
def test_generated_inputs_are_told(call: Call, tmp_path: Path, command: str):
    model = small_model(tmp_path / "small.onnx")
    assert "generated values, seed 7" in call(command, model, "--seed", "7").out
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    assert "generated" not in call(command, model, "--input", "x=x.npy").out


def test_run_gives_its_stable_keys(call: Call, tmp_path: Path):
    np.save(tmp_path / "image.npy", digits_samples().as_input(30, 1))
    answer = call("run", DIGITS, *ONE, "--input", "image=image.npy", "--out", "results", "--json")
    found = answer.json
    assert answer.code == 0 and {"outputs", "cycles", "us", "peak_bytes", "tasks", "host_tasks"} <= found.keys()
    assert found["outputs"] == [{"name": "probabilities", "shape": [1, 10], "dtype": "float32"}]
    scores = np.load("results/probabilities.npy")
    assert scores.argmax() == digits_samples().outputs[30].argmax()


def test_json_of_a_refusal_has_a_row_for_each_problem(call: Call):
    refused(answer := call("plan", DIGITS, *ONE, "--capacity", "10", "--json"), "over the capacity", code=1)
    problems = answer.json["error"]["problems"]
    assert len(problems) == 2 and all(row["message"] and row["hint"] for row in problems)
    refused(answer := call("plan", DIGITS, "--no-such-option", "--json"), "--no-such-option")
    assert answer.json.keys() == {"error"}
    assert call("plan", "nowhere.onnx").out == ""


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (("plan", DIGITS, *ONE), {"theory_min", "total_size", "no_reuse", "optimal", "tensors"}),
        (("compare", DIGITS, *ONE), {"outputs", "tasks"}),
        (("explain", DIGITS, *ONE), {"passes", "refusals", "format_changes", "host_tasks", "longest"}),
        (("ops",), {"ascend", "onnx", "host"}),
        (("ops", "Conv2D"), {"ascend", "onnx"}),
        (("socs",), {"socs"}),
        (("diff", DIGITS, *ONE, "--b-soc", "Ascend310P3"), {"totals", "tasks", "edits", "same"}),
        (("bisect", DIGITS, *ONE, "--limit", "0.05"), {"culprit", "limit", "probes"}),
        (("align", "--micro"), {"micro"}),
        (("align", DIGITS, *ONE, "--residues", "16", "--rows"), {"operators", "totals", "equal", "rows"}),
        (("profile", DIGITS, *ONE), {"outputs", "cycles", "operators", "files"}),
    ],
    ids=lambda value: " ".join(item for item in value if item != DIGITS) if isinstance(value, tuple) else "",
)
def test_json_is_one_object_and_nothing_else(call: Call, arguments: tuple[str, ...], keys: set[str]):
    answer = call(*arguments, "--json")
    assert answer.code == 0 and answer.err == ""
    assert keys <= answer.json.keys()


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", DIGITS, *ONE),
        ("ops",),
        ("ops", "Softmax"),
        ("diff", DIGITS, *ONE, "--b-soc", "Ascend310P3"),
        ("align", DIGITS, *ONE, "--residues", "256,element", "--rows", "--micro"),
        ("bisect", DIGITS, *ONE, "--limit", "0.05"),
    ],
    ids=lambda value: value[0],
)
def test_text_fits_110_columns(call: Call, arguments: tuple[str, ...]):
    answer = call(*arguments)
    assert answer.code == 0 and answer.err == ""
    assert max(map(len, answer.out.splitlines())) <= 110


@pytest.mark.parametrize("encoding", ["ascii", "utf-8:strict"])
def test_names_that_the_terminal_cannot_show_do_no_harm(tmp_path: Path, encoding: str):
    model = save(tmp_path / "net.onnx", [helper.make_node("Relu", ["x"], ["y"], "节点")])
    model = model.rename(tmp_path / os.fsdecode("网络".encode() + b"\xff.onnx"))
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    for words in (("explain", model, "节点"), ("profile", model, "--out", tmp_path / os.fsdecode(b"out\xff"))):
        done = subprocess.run([sys.executable, "-m", "npusim", *words], cwd=REPO, env=env, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
    done = subprocess.run([sys.executable, "-m", "npusim", "explain", model, "x节"], env=env, capture_output=True)
    assert done.returncode == 2 and done.stderr.startswith(b"npusim: [usage]")


@pytest.mark.parametrize(
    ("words", "redirection", "code"),
    [
        ("ops", "| true", 0),
        ("ops --json", "| true", 0),
        ("run no.onnx", "2>&-", 2),
        ("ops", ">&- 2>&-", 0),
        ("ops", ">/dev/full", 2),
        ("run no.onnx", "2>/dev/full", 2),
        ("run --no-such-option", "2>/dev/full", 2),
    ],
)
def test_the_code_is_right_whoever_reads(tmp_path: Path, words: str, redirection: str, code: int):
    if "/dev/full" in redirection and not Path("/dev/full").is_char_device():
        pytest.skip("needs a device that is always full")
    line = f"set -o pipefail; '{sys.executable}' -m npusim {words} {redirection}"
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == code and "internal" not in done.stderr and "Traceback" not in done.stderr


def test_json_stays_one_object_where_nothing_more_can_be_said(tmp_path: Path):
    if not Path("/dev/full").is_char_device():
        pytest.skip("needs a device that is always full")
    for words, key in ((["compare", DIGITS, *ONE, "--limit", "0"], "outputs"), (["run", "--no-such-option"], "error")):
        with open("/dev/full", "w") as nowhere:
            command = [sys.executable, "-m", "npusim", *words, "--json"]
            done = subprocess.run(command, cwd=REPO, stdout=subprocess.PIPE, stderr=nowhere)
        assert done.returncode == 2 and key in json.loads(done.stdout)


def test_json_is_an_option_and_no_name_of_a_file(call: Call):
    assert call("run", "--", "--json").out == ""


def test_offline_models_may_be_made_of_files_with_any_name(call: Call, tmp_path: Path):
    model = save(tmp_path / "net.onnx", [helper.make_node("Relu", ["x"], ["y"], "relu")])
    model = model.rename(tmp_path / os.fsdecode(b"bad\xff.onnx"))
    assert call("compile", model, "-o", "x.om", "--dump", "dump").code == 0
    assert call("run", "x.om").code == 0


def test_help_names_every_command():
    done = subprocess.run([sys.executable, "-m", "npusim", "--help"], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    shown = {line.split()[0] for line in done.stdout.split("Commands:")[1].splitlines() if line.startswith("  ")}
    wanted = {
        "demo",
        "run",
        "profile",
        "compile",
        "plan",
        "align",
        "compare",
        "diff",
        "bisect",
        "explain",
        "ops",
        "socs",
    }
    assert wanted | {"check"} <= shown


def test_program_run_from_the_shell_leaves_with_its_code(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "npusim", "run", str(tmp_path / "no.onnx"), "--json"],
        cwd=REPO,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, list(json.loads(done.stdout))) == (2, ["error"])
    assert done.stderr.startswith("npusim: [model]")


def test_an_initializer_is_replaced_by_a_file(call: Call, tmp_path: Path):
    value = numpy_helper.from_array(np.ones(3, np.float32), "w")
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("x", "w")]
    graph = helper.make_graph([helper.make_node("Max", ["x", "w"], ["y"])], "g", inputs, [inputs[0]], [value])
    graph.output[0].name = "y"
    model = tmp_path / "default.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), model)
    np.save(tmp_path / "w.npy", np.full(3, 99, np.float32))
    answer = call("run", model, "--input", f"w={tmp_path / 'w.npy'}")
    assert answer.code == 0 and "99, 99, 99" in answer.out


@pytest.mark.parametrize("command", ["run", "compare", "bisect", "explain", "plan"])
def test_files_bind_open_dimensions_in_every_command_that_takes_them(call: Call, tmp_path: Path, command: str):
    x = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b"])]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", x, [x[0]])
    graph.output[0].name = "y"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), tmp_path / "open.onnx")
    np.save(tmp_path / "x.npy", np.ones((2, 5), np.float32))
    takes_files = command not in ("explain", "plan")
    answer = call(command, "open.onnx", *(("--input", "x=x.npy") if takes_files else ("--shape", "x=2,5")))
    assert answer.code == 0, answer.err
    refused(call(command, "open.onnx", "--dim", "a=2"), "axis 1 has no size", "--dim b=")


def test_version_tells_what_kernels_are_compiled_for() -> None:
    code = "from npusim.cli import main; main()"
    cpu = host()
    plain = describe(cpu.triple, "generic", "").path
    for name, path in (("generic", plain), (os.environ.get("NUMBA_CPU_NAME", "host"), cpu.path)):
        env = {**os.environ, "NUMBA_CPU_NAME": name}
        done = subprocess.run([sys.executable, "-c", code, "--version"], env=env, capture_output=True, text=True)
        first, second = done.stdout.splitlines()
        assert done.returncode == 0 and first.split() == ["npusim", version("npusim")]
        assert second.startswith("kernels for ") and second.endswith(path)


@pytest.mark.parametrize("option", ["--fusion-switch-file", "--fusion_switch_file"])
def test_passes_are_switched_off_by_a_file(call: Call, tmp_path: Path, option: str):
    switch = tmp_path / "fusion_switch.cfg"
    switch.write_text("TbeConvSingleInFusionPass:off\nOnlyTheRealStackHasThisPass:off\n")
    usual = call("run", DIGITS, *ONE, "--json").json["tasks"]
    answer = call("run", DIGITS, *ONE, "--json", option, switch)
    assert answer.json["tasks"] > usual and "OnlyTheRealStackHasThisPass" in answer.err
    switch.write_text("TbeConvSingleInFusionPass:maybe\n")
    refused(call("run", DIGITS, *ONE, option, switch), "on or PassName:off", "maybe")


def test_a_dump_holds_the_schedule(call: Call, tmp_path: Path):
    from metadef.schedule_text import parse_schedule

    folder = tmp_path / "dump"
    made = call("compile", DIGITS, *ONE, "-o", tmp_path / "d.om", "--dump", folder, "--json")
    schedule = parse_schedule((folder / "schedule.txt").read_text())
    assert len(schedule.steps) == made.json["tasks"]
    gears = call("compile", DIGITS, "--dynamic-batch-size", "1,2", "-o", tmp_path / "g.om", "--dump", folder)
    assert gears.code == 0 and (folder / "schedule_1.txt").exists()
