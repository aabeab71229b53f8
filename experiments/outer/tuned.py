"""Tune outer loops and per-step sums on one grid: `python -m experiments.outer.tuned [long]`.

One process computes what islands would: the inner steps of an island are one jitted loop with the
model, loss and optimizer of `jaxpipe.runtime.stage`, the outer step is that of `jaxpipe.outer`.
`tests/experiments/outer` holds its losses against a run with one rank for each island.

The grid is searched with one seed at one H; the best cell of each number of islands is trained with
all seeds and every H. A row is written after each run, and runs that have one are not repeated.
"""

import argparse
import json
import os
import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from experiments.outer.picture import draw
from experiments.table import Row, append_csv, markdown, read_csv
from jaxpipe import load_config
from jaxpipe.config import Config
from jaxpipe.models import build_model
from jaxpipe.outer import (
    MEAN,
    OuterOptimizer,
    eager_step,
    fresh_lead,
    fresh_state,
    outer_gradient,
    outer_step,
)
from jaxpipe.runtime.data import open_dataset
from jaxpipe.runtime.data.order.samples import Windows
from jaxpipe.runtime.stage.optimizer import clip_factor, stage_optimizer
from jaxpipe.runtime.stage.stage import Stage

_HERE = Path(__file__).parent
_STUDIES = {"tuned": "gaps", "long": "long-gaps"}
"""Sections of `cases.toml`, whose names are those of their tables, and their pictures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run; sums in every step are one island that never takes an outer step (`every` is 0).

    With `eager` an island moves by its own outer gradient at once, by others' a round later.
    """

    islands: int
    every: int
    inner_rate: float
    outer_rate: float = MEAN.learning_rate
    momentum: float = MEAN.momentum
    seed: int = 0
    eager: bool = False

    @property
    def key(self) -> tuple[float, ...]:
        """What tells this run from others."""
        return tuple(asdict(self).values())


class Islands:
    """The islands of one configuration on one device; compiled once for each number of islands."""

    def __init__(self, config: Config) -> None:
        self._config = config
        model = build_model(config.model)
        layers = range(model.num_layers)
        self._whole = Stage(model=model, index=0, num_stages=1, layers=layers)
        self._data = open_dataset(Path(config.data.folders[0]))
        # Updates are linear in the peak of the learning rate, which is an argument.
        unit = replace(config.optimizer, learning_rate=1.0)
        self._optimizer = stage_optimizer(unit, num_steps=config.train.steps)
        self._initial = jax.jit(lambda seed: self._whole.init(seed=seed), static_argnums=0)
        _, self._restore = ravel_pytree(self._initial(0))
        self._inner = jax.jit(self._inner_steps)
        self._loss = jax.jit(self._mean_loss)

    def train(self, cell: Cell) -> float:
        """Return the held-out loss of the anchor after the last step."""
        islands, steps = cell.islands, self._config.train.steps
        every = cell.every or steps
        optimizer = OuterOptimizer(learning_rate=cell.outer_rate, momentum=cell.momentum)
        vector, _ = ravel_pytree(self._initial(cell.seed))
        state = fresh_state(np.asarray(vector))
        leads = [fresh_lead(state.anchor)] * islands
        moments = [self._optimizer.init(self._restore(vector))] * islands
        tokens = self._tokens(cell)
        sent: np.ndarray | None = None
        for first in range(0, steps, every):
            parts: list[np.ndarray] = []
            for island in range(islands):
                start = state.anchor + leads[island].lead
                local, moments[island] = self._inner(
                    start,
                    moments[island],
                    tokens[:, island],
                    first,
                    first + every,
                    cell.inner_rate,
                )
                parts.append(outer_gradient(start, np.asarray(local), weight=1 / islands))
            total = sum(parts[1:], parts[0])
            if not cell.eager:
                state = outer_step(state, total, optimizer)
                continue
            # The sum of a round arrives at the end of the next one.
            if sent is not None:
                state = outer_step(state, sent, optimizer)
            sent = total
            leads = [
                eager_step(lead, part, optimizer) for lead, part in zip(leads, parts, strict=True)
            ]
        if sent is not None:
            state = outer_step(state, sent, optimizer)
        return self._held_out(state.anchor)

    def _inner_steps(
        self, local: Any, moments: Any, tokens: Any, first: Any, last: Any, rate: Any
    ) -> tuple[Any, Any]:
        def step(number: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            return self._inner_step(*carry, tokens[number], rate=rate)

        return jax.lax.fori_loop(first, last, step, (local, moments))

    def _inner_step(self, vector: Any, moments: Any, tokens: Any, *, rate: Any) -> tuple[Any, Any]:
        params = self._restore(vector)
        gradients = jax.grad(self._mean_loss)(params, tokens)
        norm = sum(jnp.vdot(each, each) for each in jax.tree.leaves(gradients))
        factor = clip_factor(self._config.optimizer, jnp.asarray(norm))
        clipped = jax.tree.map(lambda each: factor * each, gradients)
        changes, moments = self._optimizer.update(clipped, moments, params)
        moved = jax.tree.map(lambda each, change: each + rate * change, params, changes)
        return ravel_pytree(moved)[0], moments

    def _mean_loss(self, params: Any, tokens: Any) -> jax.Array:
        total = self._whole.apply(params, tokens[:, :-1], tokens[:, 1:], None)
        assert isinstance(total, jax.Array)
        return total / (tokens.shape[0] * (tokens.shape[1] - 1))

    def _tokens(self, cell: Cell) -> np.ndarray:
        """Return the samples of all steps: (steps, islands, rows of an island, sequence + 1)."""
        train, sequence = self._config.train, self._config.model.sequence
        serials = np.arange(train.steps * train.batch)
        windows = Windows(tokens=self._data.train, sequence=sequence)
        rows = windows.draw(serials, seed=cell.seed).rows
        return rows.reshape(train.steps, cell.islands, -1, sequence + 1)

    def _held_out(self, anchor: np.ndarray) -> float:
        train, sequence = self._config.train, self._config.model.sequence
        windows = Windows(tokens=self._data.eval, sequence=sequence)
        assert train.eval_batches is not None, "cases.toml sets it"
        rows = windows.read(np.arange(train.eval_batches * train.batch)).rows
        params = self._restore(jnp.asarray(anchor))
        batches = np.split(rows, train.eval_batches)
        return mean(float(self._loss(params, each)) for each in batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A section of `cases.toml`, and the table of its runs."""

    name: str
    cases: dict[str, Any]

    @property
    def grid(self) -> dict[str, Any]:
        """The section."""
        return self.cases[self.name]

    @property
    def table(self) -> Path:
        """The table of all runs."""
        return _HERE / "results" / f"{self.name}.csv"

    @property
    def sides(self) -> list[tuple[int, bool]]:
        """What is tuned: numbers of islands, 0 for sums in every step, and if they are eager."""
        kinds = (False, True) if self.grid.get("eager", False) else (False,)
        return [(0, False), *((n, eager) for n in self.grid["islands"] for eager in kinds)]

    def config(self) -> Config:
        """Return the configuration of the runs."""
        settings = [*self.cases["settings"], *self.grid.get("settings", [])]
        return load_config(self.cases["config"], settings)

    def losses(self) -> dict[tuple[float, ...], float]:
        """Return the held-out loss of each run."""
        rows = read_csv(self.table) if self.table.exists() else []
        names = list(Cell.__dataclass_fields__)
        return {
            tuple(json.loads(row[name].lower()) for name in names): float(row["held_out_loss"])
            for row in rows
        }


def main() -> None:
    """Search the grid, then train the best cells with all seeds; make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", nargs="?", default="tuned", choices=_STUDIES)
    parser.add_argument("--report", action="store_true", help="train nothing: table and picture")
    given = parser.parse_args()
    study = Study(name=given.study, cases=tomllib.loads((_HERE / "cases.toml").read_text()))
    if not given.report:
        islands = Islands(study.config())
        for number, eager in study.sides:
            _make(islands, study, list(_grid(study.grid, number, eager=eager)))
            _make(islands, study, list(_chosen(study, number, eager=eager)))
    _report(study)


def _grid(tuned: dict[str, Any], number: int, *, eager: bool) -> Iterator[Cell]:
    """Yield the runs that the best of a number of islands is chosen from; 0 are sums."""
    for rate in tuned["inner_rates"]:
        if number == 0:
            yield Cell(islands=1, every=0, inner_rate=rate)
            continue
        for eta, mu in tuned["outer"]:
            yield Cell(
                islands=number,
                every=tuned["tuned_every"],
                inner_rate=rate,
                outer_rate=eta,
                momentum=mu,
                eager=eager,
            )


def _chosen(study: Study, number: int, *, eager: bool) -> Iterator[Cell]:
    """Yield the best cell of a number of islands, with all seeds, and every H if not eager."""
    tuned, losses = study.grid, study.losses()
    grid = [cell for cell in _grid(tuned, number, eager=eager) if cell.key in losses]
    if not grid:
        return
    best = min(grid, key=lambda cell: losses[cell.key])
    periods = [tuned["tuned_every"]] if eager else tuned["every"] if number else [0]
    for seed, every in product(study.cases["seeds"], periods):
        yield replace(best, every=every, seed=seed)


def _make(islands: Islands, study: Study, cells: list[Cell]) -> None:
    known = study.losses()
    missing = [cell for cell in cells if cell.key not in known]
    began = time.perf_counter()
    for number, cell in enumerate(missing):
        start = time.perf_counter()
        loss = islands.train(cell)
        now = time.perf_counter()
        row = {"held_out_loss": f"{loss:.5f}", "seconds": f"{now - start:.1f}"}
        append_csv(asdict(cell) | row | {"load": f"{os.getloadavg()[0]:.1f}"}, study.table)
        left = (now - began) / (number + 1) * (len(missing) - number - 1)
        print(f"{cell}: {loss:.4f}; {left / 60:.1f} min left", flush=True)


def _report(study: Study) -> None:
    """Write a row and a point for each number of islands and H that has runs."""
    losses = study.losses()
    cells = [
        cell
        for number, eager in sorted(study.sides)
        for cell in _chosen(study, number, eager=eager)
        if cell.key in losses
    ]
    baseline = {cell.seed: losses[cell.key] for cell in cells if not cell.every}
    rows: list[Row] = []
    points: dict[tuple[int, int], list[float]] = {}
    for first in dict.fromkeys(replace(cell, seed=0) for cell in cells):
        own = [cell for cell in cells if replace(cell, seed=0) == first]
        gaps = [losses[cell.key] / baseline[cell.seed] - 1 for cell in own]
        if first.every and not first.eager:
            points[first.islands, first.every] = gaps
        rows.append(
            {
                "islands": first.islands if first.every else "sums in every step",
                "H": f"{first.every}{', eager' if first.eager else ''}" if first.every else "",
                "inner rate": first.inner_rate,
                "eta, mu": f"{first.outer_rate:g}, {first.momentum:g}" if first.every else "",
                "held-out loss, by seed": " ".join(f"{losses[cell.key]:.4f}" for cell in own),
                "gap, by seed": " ".join(f"{gap:+.1%}" for gap in gaps),
                "mean gap": f"{mean(gaps):+.2%}",
            }
        )
    table = markdown(rows)
    study.table.with_suffix(".md").write_text(table + "\n")
    trend = {each["islands"]: tuple(each["percent"]) for each in study.cases["trend"]}
    draw(points, trend, _HERE / "results" / f"{_STUDIES[study.name]}.png")
    print(table)


if __name__ == "__main__":
    main()
