"""Training runs side by side on the same cores: `python -m experiments.shared_cores.run`.

In each round one run of two ranks trains alone, then several at the same time; a run's share is its
steps per second over those of the run alone, times the number of runs. Beside it: the processor
time of its ranks for each step, which other programs change less. Writes `results/shares.csv`.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from experiments.case_tree import Tree, case_tree
from experiments.progress import counted
from experiments.table import Row, markdown, write_csv
from jaxpipe.errors import RunError
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.runtime.metrics.records import last_step
from jaxpipe.runtime.watchdog.process_state import look_at
from jaxpipe.runtime.watchdog.rank_start import read_start
from jaxpipe.topo.toml_text import toml_text

_RESULTS = Path(__file__).parent / "results"
_FIRST_STEPS = 5
"""Not counted: connections open, caches fill."""
_START_S = 180.0
_END_S = 60.0
_NUM_RANKS = 2
_BASE: Tree = {
    "run": {"pictures": False},
    "model": {
        "num_layers": 4,
        "dim": 128,
        "num_heads": 4,
        "sequence": 32,
        "vocabulary": 256,
    },
    "plan": {
        "cluster": "this-machine:devices=2",
        "stages": 2,
        "replicas": 1,
        "microbatch": 2,
        "schedule": "1f1b",
    },
    "train": {"steps": 100_000, "batch": 8, "eval_batches": 1, "eval_every": 100_000},
    "checkpoint": {"every": 100_000},
}


def main(*, rounds: int = 3, runs: tuple[int, ...] = (1, 2, 3), seconds: float = 15.0) -> None:
    """Measure each number of runs for `seconds` in each round, and print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(Source(), folder / "data")
        trials = [(number, count) for number in range(rounds) for count in runs]
        paces = {
            (number, count): _paces(
                Path(tempfile.mkdtemp(dir=folder)), folder / "data", count=count, seconds=seconds
            )
            for number, count in counted(trials, "trials")
        }
    rows = [
        _row(
            count,
            [paces[number, 1] for number in range(rounds)],
            [paces[number, count] for number in range(rounds)],
        )
        for count in runs
    ]
    write_csv(rows, _RESULTS / "shares.csv")
    print(markdown(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The steps per second of a run, and the processor seconds of its ranks for each."""

    steps_per_s: float
    processor_s: float


def _row(count: int, alone: list[list[Pace]], together: list[list[Pace]]) -> Row:
    """Return the shares of `count` runs, each round judged by its own run alone."""
    shares = [
        sorted(pace.steps_per_s * count / paces_alone[0].steps_per_s for pace in paces)
        for paces_alone, paces in zip(alone, together, strict=True)
    ]
    return {
        "runs": count,
        "steps/s": median(sum(pace.steps_per_s for pace in paces) for paces in together),
        "share": median(sum(share) / count for share in shares),
        "least share": min(share[0] for share in shares),
        "processor ms/step": 1000
        * median(pace.processor_s for paces in together for pace in paces),
        "load": os.getloadavg()[0],
    }


def _paces(folder: Path, data: Path, *, count: int, seconds: float) -> list[Pace]:
    """Return the paces of `count` runs that train at the same time.

    Raises:
        RunError: a run ended by itself, or did not start in time.
    """
    folders = [folder / f"run-{number}" for number in range(count)]
    processes = [_start(case_tree({}, _BASE, run=run, data=data), run) for run in folders]
    try:
        end_s = time.monotonic() + _START_S
        while min(map(_steps, folders)) < _FIRST_STEPS:
            if time.monotonic() > end_s:
                raise RunError(f"{count} runs did not start within {_START_S:.0f} s")
            time.sleep(0.3)
        before, start_s = [*map(_done, folders)], time.monotonic()
        time.sleep(seconds)
        after, duration_s = [*map(_done, folders)], time.monotonic() - start_s
        for process, run in zip(processes, folders, strict=True):
            if process.poll() is not None:
                raise RunError(f"{run.name} of {count} ended by itself: {_errors(run)}")
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(_END_S)
    return [
        Pace(
            steps_per_s=(last - first) / duration_s,
            processor_s=(last_s - first_s) / max(1, last - first),
        )
        for (first, first_s), (last, last_s) in zip(before, after, strict=True)
    ]


def _done(run: Path) -> tuple[int, float]:
    """Return the steps of a run so far, and the processor seconds of its ranks."""
    starts = [start for rank in range(_NUM_RANKS) if (start := read_start(run, rank)) is not None]
    return _steps(run), sum(look_at(start.process, start.host).processor_s for start in starts)


def _start(tree: Tree, run: Path) -> subprocess.Popen[bytes]:
    config = run.with_suffix(".toml")
    config.write_text(toml_text(tree))
    command = (sys.executable, "-P", "-m", "jaxpipe", "train", str(config))
    with run.with_suffix(".err").open("wb") as errors:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)


def _errors(run: Path) -> str:
    return run.with_suffix(".err").read_text()[-500:]


def _steps(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return last_step(metrics) if metrics.exists() else 0


if __name__ == "__main__":
    import tyro

    tyro.cli(main)
