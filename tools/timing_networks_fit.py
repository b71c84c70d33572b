"""The few constants of a chip that are fitted to whole networks, fitted again without each network in turn.

A constant counts as fitted to networks if its source in the chip's file begins with ``fit on networks``. The logarithm
of every predicted time is taken as linear in the logarithms of these constants, from one run with each of them changed;
tiles stay those of the stated constants.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from metadef.target import Target, load_target

MARK = "fit on networks"
STEP = 1.15
"""Factor by which a constant is changed to see what it does."""
_RANGE = 0.35
"""How far (logarithm) a constant may move."""
_SWEEPS, _GRID = 6, 29


def fitted_constants(soc: str) -> dict[str, float]:
    """The constants fitted to networks, by dotted key."""
    constants = load_target(soc).constants
    return {key: float(item.value) for key, item in constants.items() if item.source.startswith(MARK)}


def variant(soc: str, values: Mapping[str, float]) -> Target:
    """A chip with other values of some constants."""
    tree: dict[str, Any] = {"inherits": soc, "soc": soc}
    for key, value in values.items():
        *path, last = key.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = {"value": float(value), "source": "variation", "sure": "inferred"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "chip.yaml"
        file.write_text(yaml.safe_dump(tree), encoding="utf-8")
        return load_target(str(file))


class LinearFit:
    """Predictions of points as functions of the fitted constants.

    ``predict`` gives the times of all points on a target; ``measured`` are those published, ``networks`` their names.
    """

    def __init__(
        self, soc: str, predict: Callable[[Target], np.ndarray], measured: np.ndarray, networks: list[str]
    ) -> None:
        self.constants = fitted_constants(soc)
        self.networks = np.array(networks)
        self.base = np.log(predict(load_target(soc)) / measured)
        columns = [
            (np.log(predict(variant(soc, {key: value * STEP})) / measured) - self.base) / np.log(STEP)
            for key, value in self.constants.items()
        ]
        self.slopes = np.stack(columns, 1) if columns else np.zeros((len(measured), 0))

    def residuals(self, moves: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """log(predicted / measured) of some points with the constants moved by ``moves`` (logarithms)."""
        return np.asarray(self.base[rows] + self.slopes[rows] @ moves)

    def fit(self, rows: np.ndarray) -> np.ndarray:
        """Moves with the least sum of absolute logarithms over networks, each network counting the same."""
        names = self.networks[rows]
        weights = 1.0 / np.array([np.count_nonzero(names == name) for name in names])
        moves = np.zeros(len(self.constants))
        for sweep in range(_SWEEPS):
            width = _RANGE / 2**sweep
            for index in range(len(moves)):
                trials = np.clip(moves[index] + np.linspace(-width, width, _GRID), -_RANGE, _RANGE)
                sums = []
                for trial in trials:
                    moves[index] = trial
                    sums.append(float(np.sum(weights * np.abs(self.residuals(moves, rows)))))
                moves[index] = trials[int(np.argmin(sums))]
        return moves

    def left_out(self) -> dict[str, np.ndarray]:
        """|predicted / measured - 1| of each network's points with the constants fitted to all the others."""
        errors = {}
        for name in dict.fromkeys(self.networks):
            moves = self.fit(np.flatnonzero(self.networks != name))
            errors[name] = np.abs(np.expm1(self.residuals(moves, np.flatnonzero(self.networks == name))))
        return errors

    def report(self) -> str:
        """Figures as fitted, fitted again, and with each network left out."""
        everything = np.arange(len(self.base))
        moves = self.fit(everything)
        lines = [f"{len(self.constants)} constants fitted to networks:"]
        for (key, value), move in zip(self.constants.items(), moves):
            lines.append(f"  {key} = {value:g}, best for all points {value * np.exp(move):.4g}")
        errors = self.left_out()
        lines.append(f"as stated        {_figures(np.abs(np.expm1(self.base)))}")
        lines.append(f"fitted again     {_figures(np.abs(np.expm1(self.residuals(moves, everything))))}")
        lines.append(f"network left out {_figures(np.concatenate(list(errors.values())))}")
        lines += [f"  without {name:22s} {_figures(error)}" for name, error in errors.items()]
        return "\n".join(lines)


def _figures(errors: np.ndarray) -> str:
    return f"points {len(errors):4d}  median {np.median(errors):.3f}  p90 {np.quantile(errors, 0.9):.3f}"
