"""The offline model: one set of weights and a program for each gear; saved as an .om file, run without the compiler.

Loading reads header and task list and maps the weights; neither frontends nor passes are imported, and the graph
is parsed only when somebody asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metadef.error import ModelError
from metadef.om import CREATOR, OmFile, OmHeader, PartitionType, open_om, write_om
from metadef.program import Program
from metadef.program_text import program_from_json, program_to_json, value_from_json, value_to_json

if TYPE_CHECKING:
    from metadef.graph import Graph

SCHEDULE_ATTR = "schedule_options"
"""Attribute of a model with the options that make its schedule again from its graph."""
ORIGIN_TEXT = "made by npusim: tasks for the simulated device, no kernels of a real one"


class Model:
    """A compiled network. ``programs`` maps a gear (``""``: the only one) to its task list; ``weights`` are uint8.

    ``graph`` may be given as a function that makes it when it is first read.
    """

    def __init__(
        self,
        name: str,
        soc: str,
        graph: Graph | Callable[[], Graph],
        weights: np.ndarray,
        programs: dict[str, Program],
        attrs: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.soc = soc
        self.weights = weights
        self.programs = programs
        self.attrs = dict(attrs or {})
        self._graph = graph
        self._check: Callable[[], None] | None = None

    def verified(self) -> Model:
        """This model, when the check of its weights that ``load_om(beside=True)`` began is over.

        Raises:
            ModelError: the weights were changed after they were written.
        """
        if self._check is not None:
            self._check()
            self._check = None
        return self

    @property
    def graph(self) -> Graph:
        """The compiled graph, dialect "ascend". Raises ModelError if the file's graph is damaged."""
        if callable(self._graph):
            self._graph = self._graph()
        return self._graph

    @property
    def program(self) -> Program:
        """The first gear's program."""
        return next(iter(self.programs.values()))

    def __repr__(self) -> str:
        return f"Model({self.name} for {self.soc}, {len(self.programs)} program(s), {self.weights.nbytes} weight bytes)"


def save_om(model: Model, path: str | Path) -> Path:
    """Write the model under a temporary name and rename it, so that an interrupted run leaves an earlier file whole.

    Raises:
        UsageError: the place cannot be written.
    """
    from metadef.om_graph import graph_to_model_def

    tasks = {
        "creator": CREATOR,
        "name": model.name,
        "soc": model.soc,
        "attrs": value_to_json(model.attrs),
        "programs": {gear: program_to_json(program) for gear, program in model.programs.items()},
    }
    task_bytes = json.dumps(tasks, separators=(",", ":"), allow_nan=False).encode()
    attrs = _model_attrs(model, len(task_bytes))
    partitions: dict[PartitionType, bytes | np.ndarray] = {
        PartitionType.MODEL_DEF: graph_to_model_def(model.graph, model.program, attrs),
        PartitionType.WEIGHTS_DATA: model.weights,
        PartitionType.TASK_INFO: task_bytes,
    }
    return write_om(path, OmHeader(name=model.name, user_info=CREATOR, platform_version=CREATOR), partitions)


def load_om(path: str | Path, *, verify_weights: bool = True, beside: bool = False) -> Model:
    """Read an offline model. The weights stay in the file: a read-only map of it.

    ``verify_weights=False`` skips reading the weights once for their checksum (large models); ``beside`` reads them in
    a thread of its own, which :meth:`Model.verified` waits for.

    Raises:
        ModelError: not an offline model, damaged, encrypted, or compiled by the vendor's ATC.
    """
    file = open_om(path)
    if not file.header.is_ours:
        raise _foreign(file)
    file.verify(weights=verify_weights and not beside)
    check = file.verify_weights_beside() if verify_weights and beside else None
    try:
        tasks = json.loads(file.read(PartitionType.TASK_INFO))
        programs = {gear: program_from_json(data) for gear, data in tasks["programs"].items()}
        name, soc, attrs = tasks["name"], tasks["soc"], value_from_json(tasks["attrs"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ModelError(f"'{path}': the task list is damaged", got=what, hint="compile the model again") from error
    if not programs:
        raise ModelError(f"'{path}' holds no program", hint="compile the model again")
    weights = file.map_weights()
    for gear, program in programs.items():
        if program.weights_bytes != weights.size:
            where = f" of gear {gear}" if gear else ""
            raise ModelError(
                f"'{path}': the weights do not fit the program{where}",
                expected=f"{program.weights_bytes} bytes",
                got=f"{weights.size}",
                hint="the file is damaged: compile the model again",
            )
    model = Model(name, soc, lambda: _read_graph(file, weights), weights, programs, attrs)
    model._check = check
    return model


def _read_graph(file: OmFile, weights: np.ndarray) -> Graph:
    from metadef.om_graph import model_def_to_graph

    return model_def_to_graph(file.read(PartitionType.MODEL_DEF), weights)


def _model_attrs(model: Model, task_bytes: int) -> dict[str, Any]:
    """GE's attributes of a model, and the mark of who made it."""
    programs = model.programs.values()
    io_bytes = max(program.io_bytes for program in programs)
    return {
        "npusim_origin": ORIGIN_TEXT,
        "soc_version": model.soc,
        "atc_version": CREATOR,
        "opp_version": CREATOR,
        "framework_type": "Onnx",
        "memory_size": max(program.arena_bytes for program in programs) + io_bytes,
        "zero_copy_memory_size": io_bytes,
        "weight_size": model.weights.nbytes,
        "stream_num": 1 + max((task.stream for program in programs for task in program.tasks), default=0),
        "event_num": sum(len(task.records) for task in model.program.tasks),
        "label_num": 0,
        "om_info_list": [model.weights.nbytes, 0, 0, task_bytes],
        "task_index_op_name": [task.name for task in model.program.tasks],
    }


def _foreign(file: OmFile) -> ModelError:
    if file.header.is_encrypted:
        return ModelError(f"'{file.path}' is encrypted", hint="only the vendor's runtime can open it")
    return ModelError(
        f"'{file.path}' was compiled by the vendor's ATC: its kernels cannot run here",
        got=f"model '{file.header.name}', {len(file.partitions)} partitions",
        hint="`npusim plan` shows and re-plans it from its MODEL_DEF; to run it, compile the original model here",
    )
