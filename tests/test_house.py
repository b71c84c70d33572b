"""The rules of the house as tests: sizes, top-level entries, no stubs, a light command line."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
PACKAGES = ("metadef", "npusim")
TOP_LEVEL = {
    *(".ci", ".git", ".gitignore", "LICENSE", "README.md", "pyproject.toml"),
    *("metadef", "notebooks", "npusim", "tests", "tools"),
}
LOCAL = {"build", "dist"}  # made by tools, ignored by git; so are dotted caches and *.egg-info
FILE_LINES, FUNCTION_LINES = 800, 60
FRONT_DOORS = (
    "metadef/compiler.py",
    "metadef/plan_source.py",
    "npusim/cli.py",
    "npusim/commands/*.py",
    "npusim/session.py",
)
HEAVY = {"numba", "llvmlite", "onnx", "onnxruntime", "matplotlib"}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (REPO / folder).rglob("*.py"))


def shown(path: Path) -> str:
    return path.relative_to(REPO).as_posix()


def first_parts() -> set[str]:
    """Top-level entries git knows of, or those on disk where there is no repository."""
    if (REPO / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, capture_output=True, text=True, check=True)
        return {name.split("/", 1)[0] for name in listed.stdout.split("\0") if name}
    found = {path.name for path in REPO.iterdir()} - LOCAL
    return {name for name in found if name in TOP_LEVEL or not (name.startswith(".") or name.endswith(".egg-info"))}


def listing(offenders: Iterable[str]) -> None:
    """Fail with one offender a line."""
    rows = list(offenders)
    assert not rows, "\n" + "\n".join(rows)


def test_top_level_entries_are_the_agreed_ones():
    assert first_parts() <= TOP_LEVEL


def test_files_stay_below_the_limit():
    counts = {shown(path): len(path.read_text("utf-8").splitlines()) for path in sources(*PACKAGES, "tools", "tests")}
    listing(f"{name}: {lines} lines" for name, lines in counts.items() if lines > FILE_LINES)


def test_functions_stay_below_the_limit():
    long = []
    for path in sources(*PACKAGES, "tools", "tests"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    long.append(f"{shown(path)}:{node.lineno} {node.name}: {lines} lines")
    listing(long)


def test_packages_hold_no_stubs():
    """Nothing is left unwritten: no NotImplementedError raised, no body of `...` where `declared_only` has none."""
    found = []
    for path in sources(*PACKAGES):
        tree = ast.parse(path.read_text("utf-8"))
        found += [f"{shown(path)}:{n.lineno}" for n in ast.walk(tree) if raises(n, "NotImplementedError")]
        found += [f"{shown(path)}:{n.lineno} {n.name}" for n in ast.walk(tree) if is_empty_function(n)]
    protocols = {f"{shown(path)}:{line}" for path in sources(*PACKAGES) for line in declared_only(path)}
    listing(place for place in found if place.split()[0] not in protocols)


def raises(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Raise) and node.exc is not None and ast.unparse(node.exc).split("(")[0] == name


def is_empty_function(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef):
        return False
    return isinstance(node.body[-1], ast.Expr) and ast.unparse(node.body[-1]) == "..."


def declared_only(path: Path) -> set[int]:
    """Lines of functions that may be empty: members of protocols, abstract methods, overloads."""
    lines = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases):
            lines |= {member.lineno for member in node.body if isinstance(member, ast.FunctionDef)}
        if isinstance(node, ast.FunctionDef):
            marks = " ".join(ast.unparse(mark) for mark in node.decorator_list)
            if "overload" in marks or "abstractmethod" in marks:
                lines.add(node.lineno)
    return lines


def test_every_module_opens_with_a_paragraph():
    trees = {shown(path): ast.parse(path.read_text("utf-8")) for path in sources(*PACKAGES, "tools")}
    listing(name for name, tree in trees.items() if tree.body and not ast.get_docstring(tree))


def test_command_line_starts_without_heavy_imports():
    if not (REPO / "npusim" / "cli.py").exists():
        return
    code = f"import sys, npusim.cli; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_package_data_patterns_cover_the_data_files():
    settings = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["*"]
    kept = [path for folder in PACKAGES for path in (REPO / folder).rglob("*") if path.is_file()]
    data = [path for path in kept if path.suffix not in (".py", ".pyc") and "__pycache__" not in path.parts]
    listing(shown(path) for path in data if not any(path.match(pattern) for pattern in patterns))


def test_seven_own_imports_at_most():
    """No module but the packages' front doors leans on more than seven of ours."""
    wide = []
    for path in sources(*PACKAGES):
        if path.name == "__init__.py" or any(path.match(door) for door in FRONT_DOORS):
            continue
        names = own_imports(ast.parse(path.read_text("utf-8")))
        if len(names) > 7:
            wide.append(f"{shown(path)}: {len(names)}: {', '.join(sorted(names))}")
    listing(wide)


def own_imports(tree: ast.Module) -> set[str]:
    """Modules of ours imported anywhere in a file; `from metadef import graph` counts as metadef.graph."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {inner_module(node.module, alias.name) for alias in node.names}
    return {name for name in names if name.split(".")[0] in PACKAGES}


def inner_module(package: str, name: str) -> str:
    place = REPO.joinpath(*package.split("."), name)
    return f"{package}.{name}" if place.is_dir() or place.with_suffix(".py").exists() else package


@pytest.mark.parametrize("relative", [".ci/run"])
def test_scripts_are_executable(relative):
    assert os.access(REPO / relative, os.X_OK)
