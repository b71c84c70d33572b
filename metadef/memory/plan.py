"""MemoryPlan: where every tensor and workspace lies, when it lives, and what the plan is worth."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class PlanRow:
    """A placed tensor (``tensor`` >= 0) or workspace (``tensor`` == -1, then ``step`` and ``workspace`` name it).

    ``offset`` counts from the start of its region (``weights``, ``arena``, ``io``); ``slot_bytes`` is what it takes;
    ``first`` and ``last`` are inclusive step ids; ``alias_of`` is the tensor whose memory it shares by in-place, view
    or group (-1: its own).
    """

    tensor: int
    name: str
    region: str
    offset: int
    slot_bytes: int
    payload_bytes: int
    first: int
    last: int
    alias_of: int = -1
    alias_kind: str = ""
    no_reuse: str = ""
    pool: str = "HBM"
    step: int = -1
    workspace: int = -1


@dataclass(frozen=True)
class PoolFigures:
    """The three numbers of one memory pool (bytes), whether the second is proved minimal, and the planner that won."""

    theory_min: int
    total_size: int
    no_reuse: int
    optimal: bool
    method: str


@dataclass
class MemoryPlan:
    """The plan of one schedule. ``theory_min <= total_size <= no_reuse`` all count slots of the arena.

    ``theory_min`` is the largest live set after in-place, branch and contiguous sharing; ``optimal`` says whether
    ``total_size`` is proved minimal; ``method`` names the planner that won. With several memory pools the figures are
    sums; ``pools`` holds each pool's own, and offsets in the arena count from the start of the row's pool.
    """

    schedule: str
    graph_revision: int
    rows: list[PlanRow] = field(default_factory=list)
    weights_bytes: int = 0
    io_bytes: int = 0
    total_size: int = 0
    theory_min: int = 0
    no_reuse: int = 0
    optimal: bool = False
    method: str = ""
    pools: dict[str, PoolFigures] = field(default_factory=dict)
    _places: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def of_tensor(self, tensor: int) -> PlanRow:
        """The row of a tensor id, found by an index that is made again when the rows have changed. Raises KeyError."""
        place = self._places.get(tensor, -1)
        if not 0 <= place < len(self.rows) or self.rows[place].tensor != tensor:
            self._places = {row.tensor: place for place, row in enumerate(self.rows) if row.tensor >= 0}
            place = self._places[tensor]
        return self.rows[place]

    def workspaces_of(self, step: int) -> list[PlanRow]:
        """Workspace rows of a step, in order."""
        rows = [row for row in self.rows if row.tensor < 0 and row.step == step]
        return sorted(rows, key=lambda row: row.workspace)
