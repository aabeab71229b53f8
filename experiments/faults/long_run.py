"""A run over two regions that loses a host, gains another, and has a link slow down.

500 steps on emulated hosts, namespaces with a disk each, under `jaxpipe run --hosts` with
`plan.replan = "auto"`. Tokens per second are measured on this machine, links are emulated. Losses
are compared with those of an undisturbed run of the same seed. Every sample is fed once.

    python -m experiments.faults.long_run            needs root; about five minutes
    python -m experiments.faults.long_run --draw     the picture again, from `results/long_run`
"""

import argparse
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.faults.long_run_picture import draw
from experiments.table import Row, read_csv, write_csv
from jaxpipe.chaos.harness.assertions import check_samples, train_undisturbed
from jaxpipe.chaos.harness.emulated_hosts import HostsRun, hosts_run
from jaxpipe.chaos.host import disappear
from jaxpipe.chaos.join import join
from jaxpipe.chaos.slow import slow_down
from jaxpipe.errors import RunError
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.topo.emulate import EngineKind

HERE = Path(__file__).parent
_RESULTS = HERE / "results" / "long_run"
_CLUSTER = HERE / "two_regions.toml"
_DIES, _JOINS = 4, 2
"""The second host of Oregon, and the third of Ohio."""
_DIES_AFTER, _JOINS_AFTER, _SLOWS_AFTER = 100, 200, 300
_SLOWER = 200.0
_STEPS, _BATCH, _SEQUENCE = 500, 24, 64
_ENDS_WITHIN_S = 1200.0
_POLL_S = 0.05
_SECTIONS = {
    "model": {"num_layers": 6, "dim": 64, "num_heads": 4, "sequence": _SEQUENCE},
    "train": {"steps": _STEPS, "batch": _BATCH, "eval_every": _STEPS},
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 20},
}
_PLAN = {
    "stages": 2,
    "replicas": 2,
    "microbatch": 2,
    "schedule": "1f1b",
    "devices": ["ohio-0:0", "ohio-1:0", "oregon-0:0", "oregon-1:0"],
    "replan": "auto",
    "drift_steps": 10,
}


@dataclass(slots=True, kw_only=True)
class Watched:
    """When steps were seen to end, and what happened when: seconds since the first step."""

    begin_s: float = 0.0
    steps: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    events: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])

    def happens(self, what: str) -> None:
        """Note an event."""
        self.events.append((time.monotonic() - self.begin_s, what))


@contextmanager
def watching(run: HostsRun) -> Iterator[Watched]:
    """Watch the steps of a run beside it."""
    run.wait_for_steps(1)
    watched, is_over = Watched(begin_s=time.monotonic()), threading.Event()

    def watch() -> None:
        while not is_over.wait(_POLL_S):
            watched.steps.append((time.monotonic() - watched.begin_s, run.num_steps()))

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            yield watched
        finally:
            is_over.set()
            watching.result()


def disturb(run: HostsRun, watched: Watched) -> None:
    """Lose a host, let another join, and slow the link between the regions down.

    Raises:
        RunError: the run does not continue, or has other losses.
    """
    run.wait_for_steps(_DIES_AFTER)
    watched.happens(f"{run.names[_DIES]} dies")
    disappear(run, _DIES)
    _wait_for_step_after(run, watched, "attempt 2 continues")
    run.wait_for_steps(_JOINS_AFTER)
    watched.happens(f"{run.names[_JOINS]} asks to join")
    join(run, _JOINS)
    _wait_for_step_after(run, watched, "attempt 3 continues")
    run.wait_for_steps(_SLOWS_AFTER)
    watched.happens(f"the link between the regions falls to 1/{_SLOWER:.0f}")
    slow_down(run, by=_SLOWER, only_far=True)
    run.wait_until(lambda: run.said("planned were"), what="the link is named")
    watched.happens("the link is named")
    run.wait_until(lambda: run.said("attempt 3 stopped for a new plan"), what="it plans again")
    watched.happens("the run stops for a new plan")
    _wait_for_step_after(run, watched, "attempt 4 continues")
    code = run.started.wait(timeout_s=_ENDS_WITHIN_S)
    if code:
        raise RunError(f"the run ends with exit code {code}: {run.started.stdout[-600:]}")


def _wait_for_step_after(run: HostsRun, watched: Watched, words: str) -> None:
    run.wait_for_step_after(words)
    line = next(each for each in run.started.stdout.splitlines() if words in each)
    plan = line.rpartition(": ")[2]
    watched.happens(plan)


def rows_of(watched: Watched, run: Path, reference: Path) -> list[Row]:
    """Return a row per step: when it was seen to end, and its losses in both runs.

    Raises:
        RunError: a step is missing.
    """
    ours, theirs = (read_metrics(folder / "metrics.jsonl") for folder in (run, reference))
    numbers = list(range(1, _STEPS + 1))
    if any([each.step for each in metrics] != numbers for metrics in (ours, theirs)):
        raise RunError("not every step was done once")
    ended_s = {step: at_s for at_s, count in reversed(watched.steps) for step in (count,)}
    found: list[Row] = []
    at_s = max(ended_s.values())
    for mine, other in zip(reversed(ours), reversed(theirs), strict=True):
        at_s = ended_s.get(mine.step, at_s)
        found.append(
            {
                "step": mine.step,
                "seconds": f"{at_s:.2f}",
                "loss": f"{mine.loss:.7f}",
                "undisturbed": f"{other.loss:.7f}",
            }
        )
    return found[::-1]


def progress(watched: Sequence[tuple[float, int]], *, every_s: float = 2.0) -> list[Row]:
    """Return tokens per second of steps that were reached for the first time, in equal times."""
    found: list[Row] = []
    reached, last, until_s = 0, 0, every_s
    for at_s, step in watched:
        while at_s > until_s:
            tokens = (reached - last) * _BATCH * _SEQUENCE
            found.append({"seconds": f"{until_s:.0f}", "tokens_per_s": f"{tokens / every_s:.0f}"})
            last, until_s = reached, until_s + every_s
        reached = max(reached, step)
    return found


def measure() -> None:
    """Run, and write the tables."""
    with TemporaryDirectory() as name:
        root = Path(name)
        dataset = root / "data" / "dataset"
        prepare(Source(path=HERE.parents[1] / "docs" / "guide"), dataset)
        reference = train_undisturbed(root / "undisturbed", dataset, **_SECTIONS)
        network = hosts_run(
            root / "run",
            dataset,
            cluster=str(_CLUSTER),
            kind=EngineKind.HTB,
            hooks=("--hooks", "jaxpipe.chaos.harness.sample_log:recorder"),
            plan=_PLAN,
            checkpoint={"every": 20},
            trace={"links_every": 5},
            **_SECTIONS,
        )
        with network as run:
            try:
                with watching(run) as watched:
                    disturb(run, watched)
            finally:
                print(run.started.stdout[-6000:])
            check_samples(run.started.config, dataset)
            steps = rows_of(watched, run.folder(), reference)
    _RESULTS.mkdir(parents=True, exist_ok=True)
    tokens = progress(watched.steps)
    events: list[Row] = [{"seconds": f"{at:.1f}", "event": what} for at, what in watched.events]
    for file, rows in (("steps", steps), ("tokens", tokens), ("events", events)):
        write_csv(rows, _RESULTS / f"{file}.csv")
    differs = max(abs(float(row["loss"]) / float(row["undisturbed"]) - 1) for row in steps)
    print(f"largest relative difference of a loss: {differs:.2g}")


def main() -> None:
    """Run, unless only the picture is asked for, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", action="store_true")
    if not parser.parse_args().draw:
        measure()
    steps, tokens, events = (
        read_csv(_RESULTS / f"{file}.csv") for file in ("steps", "tokens", "events")
    )
    draw(steps, tokens, events, _RESULTS / "long_run.png")


if __name__ == "__main__":
    main()
