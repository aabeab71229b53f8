"""A new plan for links that have changed: what its search has found, its files, and its adoption.

A run adopts it by itself, if it may: rank 0 leaves it, and the supervisor continues with it::

    rank 0: new plan ─► files of its own, `adopt.json` ─► all ranks stop after the step
    supervisor: `adopt.json` ─► next attempt with its settings, from the checkpoint of that step

Files that a run has adopted are never written again: a later search must not change the plan of
attempts that follow.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from jaxpipe.foreign_file import read_json, read_regular

CLUSTER_FILE, PLAN_FILE = "drift-cluster.toml", "drift-plan.toml"
"""The corrected cluster, and the new plan for it, in the folder of the run."""


def replan_settings(folder: Path) -> tuple[str, ...]:
    """Return the settings with which a configuration trains by the new plan in a run folder."""
    return (f"plan.cluster={folder / CLUSTER_FILE}", f"plan.file={folder / PLAN_FILE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """Simulated seconds of a step over the measured links, by the present and by a new plan.

    `keeps_rank_0` says whether rank 0 stays on its host, whose disk has the metrics of the run.
    """

    present_s: float
    new_s: float
    keeps_rank_0: bool = True

    @property
    def is_worth_it(self) -> bool:
        """Whether the new plan is faster by more than simulations may err between two plans."""
        return self.new_s < 0.95 * self.present_s

    def repays(self, *, num_steps: int, pause_s: float) -> bool:
        """Return whether `num_steps` save more seconds than a pause takes.

        >>> found = Replanned(present_s=4.0, new_s=1.0)
        >>> found.repays(num_steps=10, pause_s=20.0), found.repays(num_steps=5, pause_s=20.0)
        (True, False)
        """
        return num_steps * (self.present_s - self.new_s) > pause_s


_ADOPT_FILE = "adopt.json"
_MOST_BYTES = 2**28
_FIELDS = {CLUSTER_FILE: "cluster", PLAN_FILE: "file"}
"""The field of `plan` for each file."""
ADOPTED_EXIT_CODE = 75
"""Of a launcher whose ranks have stopped for a new plan (EX_TEMPFAIL of sysexits.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """The settings that name the files of a new plan, and its gain."""

    settings: tuple[str, ...]
    replanned: Replanned

    def __str__(self) -> str:
        """Return both step times, as simulated.

        >>> print(Adopted(settings=(), replanned=Replanned(present_s=4.0, new_s=1.0)))
        stopped for a new plan: 1 s a step in place of 4 s, simulated over the measured links
        """
        new_s, present_s = self.replanned.new_s, self.replanned.present_s
        return (
            f"stopped for a new plan: {new_s:.4g} s a step in place of {present_s:.4g} s, "
            "simulated over the measured links"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """The content of the file."""

    step: int
    replanned: Replanned


def adopt(folder: Path, replanned: Replanned, *, step: int) -> None:
    """Keep the new plan in a run folder, found after `step`, for its supervisor.

    Raises:
        OSError: the folder cannot be written.
    """
    for name in _FIELDS:
        _kept(folder, name, step=step).write_bytes(
            read_regular(folder / name, most_bytes=_MOST_BYTES)
        )
    draft = folder / f"{_ADOPT_FILE}.draft"
    draft.write_bytes(msgspec.json.encode(_Content(step=step, replanned=replanned)))
    draft.replace(folder / _ADOPT_FILE)


def adopted_in(folder: Path) -> Adopted | None:
    """Return what the last attempt in a run folder has adopted, None if it has not."""
    try:
        content = read_json(folder / _ADOPT_FILE, _Content, most_bytes=_MOST_BYTES)
    except (OSError, ValueError):
        return None
    # The file names no setting and no path: those of the next attempt follow from the step.
    settings = tuple(
        f"plan.{field}={_kept(folder, name, step=content.step)}" for name, field in _FIELDS.items()
    )
    return Adopted(settings=settings, replanned=content.replanned)


def clear_adopted(folder: Path) -> None:
    """Forget the new plan of the last attempt, before the next begins."""
    (folder / _ADOPT_FILE).unlink(missing_ok=True)


def _kept(folder: Path, name: str, *, step: int) -> Path:
    """Return where a file of the plan that was found after a step is kept."""
    return folder / f"{Path(name).stem}-{step}.toml"
