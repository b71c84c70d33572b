"""Timing: the executed trace on the simulated chip, in integer cycles with the cause of every cycle.

:func:`time_program` is the entry; :func:`task_timeline` gives the pipe intervals of one task, as that times it where
it is given the :func:`memory_state` of one of :func:`executed_tasks`.
"""

from npusim.timing.program import executed_tasks, time_program
from npusim.timing.tasks import memory_state
from npusim.timing.timeline import Interval, Timeline, task_timeline

__all__ = ["Interval", "Timeline", "executed_tasks", "memory_state", "task_timeline", "time_program"]
