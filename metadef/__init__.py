"""metadef: a graph compiler for Ascend NPUs, from a model file to a task list over one flat device memory.

The road (each step takes a value and returns a value)::

    frontend -> Graph(onnx) -> legalize -> Graph(ascend) -> passes -> select -> Schedule -> memory -> MemoryPlan
             -> lower -> Program;   Model = graph + weights + program = .om
"""
