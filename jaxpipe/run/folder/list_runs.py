"""The runs in a folder: what each trained, how far it is, and how it ended."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxpipe.errors import UserError
from jaxpipe.run.folder.folder_lock import holder_of
from jaxpipe.runtime.metrics.records import METRICS_FILE, read_summary
from jaxpipe.runtime.watchdog import has_ended, read_cause


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run; `state` says how it is, in words.

    `losses` are those of steps, `held_out` those on held-out tokens: of a long run some thousands
    of them, and the last.
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

    One that cannot be read hides no other: its state says why.

    Raises:
        UserError: there is no such folder.
    """
    if not folder.is_dir():
        raise UserError(f"`jaxpipe runs` takes a folder with runs, {folder} is none")
    return tuple(map(_summary_or_why, sorted(path.parent for path in folder.rglob(METRICS_FILE))))


def summary_of(folder: Path) -> RunSummary:
    """Return the summary of the run in a folder.

    Raises:
        UserError: it has no metrics, or they cannot be read.
    """
    path = folder / METRICS_FILE
    metrics = read_summary(path)
    description, losses = metrics.description, metrics.losses
    if description is None:
        raise UserError(f"a run has metrics with its configuration, {path} has none; name another")
    config = _section(description, "config")
    num_steps = _section(config, "train").get("steps", 0)
    if not isinstance(num_steps, int):
        raise UserError(f"`train.steps` must be a whole number, not {num_steps!r:.80}, in {path}")
    return RunSummary(
        folder=folder,
        model=_model(_section(config, "model")),
        plan=_plan(_section(config, "plan")),
        num_steps=num_steps,
        losses=losses,
        held_out=metrics.held_out,
        truth=metrics.truth or "not recorded",
        state=_state(folder, done=bool(losses) and losses[-1][0] >= num_steps),
    )


def _summary_or_why(folder: Path) -> RunSummary:
    try:
        return summary_of(folder)
    except UserError as error:
        return RunSummary(
            folder=folder,
            model="?",
            plan="?",
            num_steps=0,
            losses=(),
            held_out=(),
            truth="not recorded",
            state=f"cannot be read: {error}",
        )


def _section(tree: dict[str, Any], name: str) -> dict[str, Any]:
    section = tree.get(name, {})
    return section if isinstance(section, dict) else {}


def _model(model: dict[str, Any]) -> str:
    return f"{model.get('num_layers', '?')!s:.20} layers, dim {model.get('dim', '?')!s:.20}"


def _plan(plan: dict[str, Any]) -> str:
    where = plan.get("cluster", "?")
    if plan.get("file"):
        return f"{plan['file']} on {where}"
    if isinstance(cuts := plan.get("cuts"), list) and all(isinstance(cut, list) for cut in cuts):
        return f"{' + '.join(str(len(cut)) for cut in cuts)} on {where}"
    return f"{plan.get('stages', '?')} x {plan.get('replicas', '?')} on {where}"


def _state(folder: Path, *, done: bool) -> str:
    if (holder := holder_of(folder)) is not None:
        return f"running (process {holder.process} on {holder.host})"
    if (cause := read_cause(folder)) is not None:
        # Marked by the launcher: all was saved before it.
        return f"{'complete, but then' if has_ended(folder) else 'failed'}: {cause}"
    return "complete" if done else "stopped"
