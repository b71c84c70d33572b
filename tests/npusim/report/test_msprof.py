"""The profiler's folder and the HTML report of a real session: names, columns, and figures that add up."""

import csv
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from metadef.target import load_target
from npusim import InferenceSession, SessionOptions
from npusim.data import digits_model
from npusim.profile import CAUSES
from npusim.report.files import write_reports
from npusim.report.msprof import BASE_COLUMNS, cycles_by_cause, op_statistic, op_summary, write_msprof

SPLIT = ("aicore_time(us)", "aic_total_cycles", "aic_mac_time(us)", "aic_mac_ratio", "aic_fixpipe_ratio",
         "aiv_time(us)", "aiv_total_cycles", "aiv_vec_ratio", "aiv_mte3_ratio", "cube_utilization(%)")  # fmt: skip
COUPLED = ("aicore_time(us)", "total_cycles", "vec_time(us)", "vec_ratio", "mac_time(us)", "mac_ratio", "mte3_ratio",
           "memory_bound", "cube_utilization(%)")  # fmt: skip


@pytest.fixture(scope="module", params=["Ascend910B3", "Ascend310P3"])
def session(request) -> InferenceSession:
    options = SessionOptions(soc=request.param, precision="fp16", shapes={"image": (1, 1, 28, 28)}, threads=1)
    return InferenceSession(digits_model(), options)


def parts(session):
    return session.program, session.profile.data, load_target(session.program.soc)


def test_folder_opens_with_readers_of_msprof(session, tmp_path):
    root = write_msprof(tmp_path, *parts(session))
    assert re.fullmatch(r"PROF_\d{6}_\d{17}_\w+", root.name)
    names = [path.name for path in (root / "mindstudio_profiler_output").iterdir()]
    for pattern in (r"op_summary_\d{14}\.csv", r"op_statistic_\d{14}\.csv", r"task_time_\d{14}\.csv",
                    r"msprof_\d{14}\.json"):  # fmt: skip
        assert sum(bool(re.fullmatch(pattern, name)) for name in names) == 1
    info = json.loads((root / "device_0" / "info.json.0").read_text())["DeviceInfo"][0]
    assert info["ai_core_num"] == parts(session)[2].cube_cores
    (summary,) = (root / "mindstudio_profiler_output").glob("op_summary_*.csv")
    with summary.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert tuple(rows[0])[: len(BASE_COLUMNS)] == BASE_COLUMNS
    assert rows[0]["Input Shapes"].startswith('"') and rows[0]["Input Shapes"].endswith('"')


def test_counters_are_those_of_the_family_and_add_up(session):
    program, profile, target = parts(session)
    rows = op_summary(program, profile, target)
    assert len(rows) == len(profile.tasks)
    assert set(COUPLED if target.coupled else SPLIT) <= set(rows[0])
    for row in rows:
        assert all(0 <= value <= 1 for name, value in row.items() if name.endswith("_ratio"))
        assert row["Task Duration(us)"] > 0 and row["Task Wait Time(us)"] >= 0
        assert 0 <= row["cube_utilization(%)"] <= 100
    total = sum(row["Total Time(us)"] for row in op_statistic(profile, target))
    assert total == pytest.approx(sum(profile.to_us(task.cycles) for task in profile.tasks), abs=0.01)


def test_causes_add_up_exactly(session):
    profile = parts(session)[1]
    for row in cycles_by_cause(profile):
        assert sum(row[cause] for cause in CAUSES) == row["cycles"]


class _Checked(HTMLParser):
    """Counts rows and pictures, and what would be fetched from elsewhere."""

    def __init__(self):
        super().__init__()
        self.rows, self.pictures, self.fetched = 0, 0, []

    def handle_starttag(self, tag, attrs):
        self.rows += tag == "tr"
        source = dict(attrs).get("src") or dict(attrs).get("href") or ""
        self.pictures += source.startswith("data:image/png;base64,")
        if source and not source.startswith("data:"):
            self.fetched.append(source)


def test_report_is_one_file_with_everything_inside(session, tmp_path):
    program, profile, target = parts(session)
    written = write_reports(tmp_path, program, profile, target)
    assert all(path.exists() for path in written)
    page = _Checked()
    page.feed((tmp_path / "report.html").read_text())
    assert (page.rows, page.pictures, page.fetched) == (len(profile.tasks) + 1, 4, [])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium")
def test_report_is_drawn_by_a_browser_and_sorts(session, tmp_path):
    program, profile, target = parts(session)
    write_reports(tmp_path, program, profile, target)
    call = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}"]
    page = tmp_path / "report.html"
    click = "<script>document.querySelectorAll('th')[4].click()</script>"
    page.write_text(page.read_text().replace("</body>", f"{click}</body>"))
    dom = subprocess.run([*call, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    cycles = [int(value) for value in re.findall(r"<td data-v=\"(\d+)\"><div class=\"bar\">", dom.stdout)]
    assert cycles == sorted((task.cycles for task in profile.tasks), reverse=True)
