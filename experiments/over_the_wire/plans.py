"""Plans by `jaxpipe plan`, as a user makes them: a command, and the settings that it names."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.over_the_wire.processes import SETTINGS
from experiments.over_the_wire.systems import Cell
from jaxpipe.plan import read_plan

MODEL = Path(__file__).parent / "model.toml"
PYTHON = (sys.executable, "-P", "-m", "jaxpipe")
_TIMEOUT_S = 600.0
_NEXT = "next: jaxpipe train "


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePlan:
    """A plan file, what the peers need of it, and what `jaxpipe train` is to be called with."""

    path: Path
    cut: tuple[int, ...]
    microbatch: int
    schedule_name: str
    devices: tuple[int, ...]
    """The device of each rank."""
    settings: tuple[str, ...]


def make_plan(cell: Cell, changes: Sequence[str], *, export: bool = False) -> MadePlan:
    """Plan the configuration of a cell with further changes; `export` writes the CSV of torch."""
    path = cell.folder / "plan.toml"
    words = ("--export", "torch-csv") if export else ("--objective", cell.system.objective)
    text = _plan(cell, changes, "--out", str(path), *words)
    commands = [line for line in text.splitlines() if line.startswith(_NEXT)]
    # Its first word is the configuration; `--set KEY=VALUE` follow.
    printed = shlex.split(commands[-1].removeprefix(_NEXT))[1:]
    plan = read_plan(path, cell.cluster)
    return MadePlan(
        path=path,
        cut=tuple(plan.pipelines[0].cut),
        microbatch=plan.pipelines[0].microbatch,
        schedule_name=plan.schedule_name,
        devices=tuple(plan.device(rank) for rank in range(plan.num_ranks)),
        settings=tuple(word for word in printed if word != "--set"),
    )


def best_islands(cell: Cell, changes: Sequence[str]) -> tuple[str, ...]:
    """Return the outer loop that `jaxpipe plan --outer auto` finds first at equal loss.

    Its H is that of the cell's system, whose settings come before what was found: those of the
    table train fewer steps than a usual H.
    """
    out = str(cell.folder / "outer.toml")
    answer = json.loads(_plan(cell, changes, "--out", out, "--outer", "auto", "--json"))
    choices = [choice for choice in answer["outer"]["choices"] if choice["islands"]]
    best: dict[str, Any] = min(choices, key=lambda choice: choice["equal_loss_seconds"])
    loop = {name: best[name] for name in ("islands", "delay", "codec")}
    loop |= {"every": cell.system.every, **cell.system.settings}
    return tuple(f"outer.{name}={value}" for name, value in loop.items())


def set_words(changes: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command line that make changes."""
    return tuple(word for change in changes for word in ("--set", change))


def _plan(cell: Cell, changes: Sequence[str], *words: str) -> str:
    command = (*PYTHON, "plan", str(MODEL), *set_words((*cell.changes, *changes)), *words)
    done = subprocess.run(
        command,
        env=os.environ | SETTINGS,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} exited with {done.returncode}:\n{done.stderr}")
    return done.stdout
