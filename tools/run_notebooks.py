"""Run notebooks from top to bottom and store them with their outputs and pictures.

    python tools/run_notebooks.py [NAME.ipynb ...]

Without names, all of notebooks/. Cell ids and metadata are made plain, so that a run changes outputs only.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def store(path: Path) -> float:
    """Execute one notebook, write it back, return the seconds it took. Raises nbclient's error if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=60, kernel_name="python3", resources=place, coalesce_streams=True).execute()
    seconds = time.perf_counter() - start
    for index, cell in enumerate(notebook.cells):
        cell.metadata, cell.id = {}, f"cell-{index:02d}"
        cell.outputs = [item for item in cell.get("outputs", []) if item.get("name") != "stderr"]
        if cell.cell_type != "code":
            del cell["outputs"]
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    temporary = path.with_suffix(".tmp")
    nbformat.write(notebook, temporary)
    temporary.replace(path)
    return seconds


if __name__ == "__main__":
    for given in [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        print(f"{given.name}: {store(given):.1f} s", flush=True)
