"""Timing: the executed trace on the simulated chip, in integer cycles with the cause of every cycle.

:func:`time_program` is the entry; :func:`task_timeline` gives the pipe intervals of one task.
"""

from npusim.timing.program import time_program
from npusim.timing.timeline import Interval, Timeline, task_timeline

__all__ = ["Interval", "Timeline", "task_timeline", "time_program"]
