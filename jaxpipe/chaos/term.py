"""SIGTERM to a process of a run, which must save and end in order.

The launcher, `mpirun` or one rank gets the signal; the run must commit a checkpoint of the current
step, end with exit code 143, and resume from there, so that no step is done twice.
"""

import signal
import time
from enum import StrEnum
from pathlib import Path

from jaxpipe.chaos.harness.processes import psutil
from jaxpipe.chaos.harness.tiny_run import ENDLESS, NUM_RANKS, Started, started, write_config
from jaxpipe.chaos.harness.trial import Case, Family, expect, one_by_one
from jaxpipe.errors import RunError
from jaxpipe.runtime.checkpoint import latest, newest_valid
from jaxpipe.runtime.metrics.records import read_metrics

_SAVED_WITHIN_S = 5.0
_MOST_LOST = 1
_MORE_STEPS = 2
_ENDS_WITHIN_S = 60.0
_POLL_S = 0.01


class Target(StrEnum):
    """The process that gets the signal."""

    PARENT = "jaxpipe train"
    RANK = "a rank"
    LAUNCHER = "mpirun"


def _trial(case: Case) -> None:
    chance = case.chance()
    target, victim = list(Target)[case.seed % len(Target)], chance.randrange(NUM_RANKS)
    after_s = chance.uniform(0.0, 1.0)
    case.name = f"SIGTERM to {f'{target} {victim}' if target is Target.RANK else target.value}"
    rarely = {"every": ENDLESS["steps"]}
    config = write_config(case.folder, case.dataset, train=ENDLESS, checkpoint=rarely)
    with started(config, case.dataset) as run:
        # Before the first step, a signal ends the run at once, without a checkpoint.
        ranks = run.settle(steps=3, after_s=after_s)
        process = ranks[victim] if target is Target.RANK else _process(run, target)
        process.send_signal(signal.SIGTERM)
        case.figures["saved_s"] = _wait_for_checkpoint(run)
        code = run.wait(timeout_s=_ENDS_WITHIN_S)
    done, saved = len(read_metrics(run.folder / "metrics.jsonl")), newest_valid(run.folder).step
    case.figures["lost_steps"] = done - saved
    limit_s, saved_s = _SAVED_WITHIN_S, case.figures["saved_s"]
    expect(abs(done - saved) <= _MOST_LOST, f"{done} steps were done, {saved} saved")
    expect(saved_s <= limit_s, f"a checkpoint was there after {saved_s:.1f} s, not {limit_s} s")
    expect(code == 128 + signal.SIGTERM, f"exit code {code}: {run.stderr[-300:]}")
    _resume(config, case.dataset, steps=saved + _MORE_STEPS)


def _process(run: Started, target: Target) -> psutil.Process:
    """Return the process of `jaxpipe train`, or that of its `mpirun`."""
    parent = psutil.Process(run.process.pid)
    return parent if target is Target.PARENT else parent.children()[0]  # mpirun is its only child


def _wait_for_checkpoint(run: Started) -> float:
    """Return the seconds until there is a checkpoint.

    Raises:
        CheckpointError: the run has ended, and there is none.
        RunError: it takes too long.
    """
    begin_s = time.monotonic()
    while time.monotonic() - begin_s < _ENDS_WITHIN_S:
        has_ended = run.process.poll() is not None
        # A digit at the end: folders that end in `.partial` are not committed.
        if any((run.folder / "checkpoints").glob("step-*[0-9]/manifest.json")) or has_ended:
            latest(run.folder)
            return time.monotonic() - begin_s
        time.sleep(_POLL_S)
    raise RunError(f"there is no checkpoint after {_ENDS_WITHIN_S:g} s")


def _resume(config: Path, dataset: Path, *, steps: int) -> None:
    """Resume up to a step, and see that each step was done once."""
    arguments = ("--resume", "--set", f"train.steps={steps}")
    with started(config, dataset, arguments=arguments) as run:
        code = run.wait(timeout_s=4 * _ENDS_WITHIN_S)
    expect(code == 0, f"resumed, it ends with exit code {code}: {run.stderr[-300:]}")
    done = [metrics.step for metrics in read_metrics(run.folder / "metrics.jsonl")]
    expect(done == list(range(1, steps + 1)), f"{len(done)} steps up to {done[-1]}, not {steps}")


TERM = Family(
    name="term",
    does="SIGTERM to `jaxpipe train`, to mpirun and to a rank",
    aim="a checkpoint within 5 s, at most one step lost, exit code 143; resumes from there",
    num_trials=1,
    num_trials_full=12,
    trials=one_by_one(_trial),
)
