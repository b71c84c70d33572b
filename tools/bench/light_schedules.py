"""Schedules of the light models that come with onnx: unfused fp32 graphs in file order, slots rounded to 64 bytes.

For the planner bench. Weights, and whatever is computed from them alone, take no part; graph inputs and outputs count
as features, and every node writes its outputs anew unless an in-place permission is taken.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metadef.format import round_up
from metadef.schedule import InPlace, Schedule, ScheduleTensor, Step

NAMES = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip

ROUNDING_BYTES, FP32_BYTES = 64, 4

OVERWRITING = {
    "Add", "BatchNormalization", "Dropout", "Flatten", "Mul", "Relu", "Reshape", "Sum", "Unsqueeze",
}  # fmt: skip
"""Operators whose output may take the memory of an input of the same size that dies there.

LRN is none of them: it reads its neighbours."""


def light_schedule(name: str) -> Schedule:
    """The schedule of one light model, with every in-place permission."""
    import onnx

    folder = Path(onnx.__file__).parent / "backend/test/data/light"
    model = onnx.shape_inference.infer_shapes(onnx.load(folder / f"light_{name}.onnx"))
    graph = model.graph
    bytes_of = {value.name: _bytes(value) for value in (*graph.value_info, *graph.input, *graph.output)}
    constants = {weight.name for weight in graph.initializer}
    schedule, ids = Schedule(name, ""), dict[str, int]()

    def tensor(value: str) -> int:
        if value not in ids:
            ids[value] = len(ids)
            size = bytes_of[value]
            slot = round_up(size, ROUNDING_BYTES)
            schedule.tensors.append(ScheduleTensor(ids[value], value, size, alignment=ROUNDING_BYTES, slot_bytes=slot))
        return ids[value]

    for node in graph.node:
        if all(value in constants for value in node.input):
            constants.update(node.output)
            continue
        used = [value for value in node.output if value in bytes_of]
        reads = [tensor(value) for value in node.input if value and value not in constants]
        writes = [tensor(value) for value in used]
        step = len(schedule.steps)
        schedule.steps.append(Step(step, node.name or used[0], tuple(reads), tuple(writes)))
        if node.op_type in OVERWRITING:
            same = [read for read in dict.fromkeys(reads) if _size(schedule, read) == _size(schedule, writes[0])]
            schedule.inplace += [InPlace(step, read, writes[0]) for read in same]
    return schedule


def _size(schedule: Schedule, tensor: int) -> int:
    return schedule.tensors[tensor].payload_bytes


def _bytes(value: Any) -> int:
    elements = 1
    for dim in value.type.tensor_type.shape.dim:
        elements *= dim.dim_value
    return elements * FP32_BYTES
