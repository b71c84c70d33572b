"""Control flow in the Ascend dialect: GE's operators with subgraphs, and the tasks they become.

``If`` reads a condition and values; each subgraph gets the values and returns the node's results. ``While`` reads
carried values and then invariant ones; both subgraphs get all of them, ``cond`` returns one bool, ``body`` the carried
values renewed. In a schedule subgraphs are written in place: a :data:`SWITCH` step reads an index (or a bool) from
device memory and goes on at the step its ``jumps`` list there; a :data:`GOTO` step always jumps.
"""

from __future__ import annotations

IF = "If"
WHILE = "While"
THEN, ELSE = "then_branch", "else_branch"
COND, BODY = "cond", "body"
SWITCH = "LabelSwitchByIndex"
GOTO = "LabelGotoEx"
LOAD = "MemcpyAsync"
"""Copies a streamed weight from the host's map of the model file into the arena."""
IMPOSSIBLE = "Impossible"
"""An operator of :data:`OWN_DOMAIN` in the place of a branch that cannot run under the compiled shapes: it faults."""
OWN_DOMAIN = "metadef"
