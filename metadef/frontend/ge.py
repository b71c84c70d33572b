"""The front end for GE's own models: dumps of any stage, models as JSON, offline models, planned without our kernels.

``load_ge`` reads a file and gives its schedule beside what GE decided; ``metadef.memory.plan_memory`` plans it anew.
"""

from __future__ import annotations

from pathlib import Path

from metadef.frontend.ge_plan import recorded_plan
from metadef.frontend.ge_read import model_def_from_json, probe_form, read_model_def
from metadef.frontend.ge_schedule import GeSchedule, schedule_of_model


def load_ge(source: str | Path) -> GeSchedule:
    """The schedule of a GE model: ge_proto text, ge_onnx text, JSON, .om (a vendor's too) or .air, told by content.

    Raises:
        ModelError: the file is damaged or none of these, or its graph contradicts itself.
    """
    return schedule_of_model(read_model_def(source))


__all__ = ["GeSchedule", "load_ge", "model_def_from_json", "probe_form", "recorded_plan", "schedule_of_model"]
