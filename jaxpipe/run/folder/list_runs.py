"""The runs in a folder: what each trained, how far it is, and how it ended."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxpipe.errors import UserError
from jaxpipe.run.folder.folder_lock import holder_of
from jaxpipe.runtime.metrics.records import METRICS_FILE, read_description, read_truth
from jaxpipe.runtime.watchdog import read_cause


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run; `losses` has the loss of each step, and `state` says how the run is, in words.

    `held_out` has the losses that were measured on held-out tokens.
    """

    folder: Path
    model: str
    plan: str
    num_steps: int
    losses: tuple[tuple[int, float], ...]
    held_out: tuple[tuple[int, float], ...]
    truth: str
    state: str

    @property
    def last_step(self) -> int:
        """The last step that was trained; 0 if none was."""
        return self.losses[-1][0] if self.losses else 0


def runs_in(folder: Path) -> tuple[RunSummary, ...]:
    """Return the runs in a folder and in the folders below it, by their paths.

    Raises:
        UserError: there is no such folder.
    """
    if not folder.is_dir():
        raise UserError(f"`jaxpipe runs` takes a folder with runs, {folder} is none")
    return tuple(map(summary_of, sorted(path.parent for path in folder.rglob(METRICS_FILE))))


def summary_of(folder: Path) -> RunSummary:
    """Return the summary of the run in a folder.

    Raises:
        UserError: it has no metrics.
    """
    path = folder / METRICS_FILE
    description = read_description(path)
    if description is None:
        raise UserError(f"a run has metrics with its configuration, {path} has none; name another")
    config = description["config"]
    num_steps = config.get("train", {}).get("steps", 0)
    losses = tuple(_losses(path, "loss"))
    return RunSummary(
        folder=folder,
        model=_model(config.get("model", {})),
        plan=_plan(config.get("plan", {})),
        num_steps=num_steps,
        losses=losses,
        held_out=tuple(_losses(path, "eval_loss")),
        truth=read_truth(path) or "not recorded",
        state=_state(folder, done=bool(losses) and losses[-1][0] >= num_steps),
    )


def _losses(path: Path, kind: str) -> Iterator[tuple[int, float]]:
    """Yield step and loss of a kind, where it was measured; steps of paced runs have none."""
    for line in path.read_text().splitlines():
        row = json.loads(line) if line.endswith("}") else {}
        if "step" in row and row.get(kind) is not None:
            yield row["step"], row[kind]


def _model(model: dict[str, Any]) -> str:
    return f"{model.get('num_layers', '?')} layers, dim {model.get('dim', '?')}"


def _plan(plan: dict[str, Any]) -> str:
    where = plan.get("cluster", "?")
    if plan.get("file"):
        return f"{plan['file']} on {where}"
    if cuts := plan.get("cuts"):
        return f"{' + '.join(str(len(cut)) for cut in cuts)} on {where}"
    return f"{plan.get('stages', '?')} x {plan.get('replicas', '?')} on {where}"


def _state(folder: Path, *, done: bool) -> str:
    if (holder := holder_of(folder)) is not None:
        return f"running (process {holder.process} on {holder.host})"
    if (cause := read_cause(folder)) is not None:
        return f"failed: {cause}"
    return "complete" if done else "stopped"
