"""Kills ranks of runs that survive it, and measures how soon the others train again, and what.

`python -m experiments.faults.shrink` kills each rank of 2 x 2 in turn, then two in a row,
and writes `results/shrink.jsonl`; `--trials N` repeats it, with other moments of the kill.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from jaxpipe.runtime.launch import seat
from jaxpipe.runtime.metrics import read_metrics

_CONFIG = "experiments/quickstart/two_region.toml"
_STEPS = 80
_SETTINGS = (
    "run.survive=shrink",
    "model.dim=64",
    f"train.steps={_STEPS}",
    f"train.eval_every={_STEPS}",
    "train.eval_batches=1",
    f"checkpoint.every={_STEPS}",
    "sample.tokens=0",
)
_KILLS: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,), (3,), (1, 0), (0, 2))
"""Which ranks are killed, one after the other; the second by its number among three."""
_PATIENCE_S = 120.0


def main() -> None:
    """Run all trials, and print and write a line for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=1)
    trials = parser.parse_args().trials
    chance = random.Random(0)
    out = Path(__file__).parent / "results" / "shrink.jsonl"
    with TemporaryDirectory() as folder, out.open("w") as file:
        undisturbed = _run(Path(folder) / "undisturbed", (), chance)
        expected = _losses(Path(folder) / "undisturbed")
        print(json.dumps(undisturbed))
        for number in range(trials):
            for kills in _KILLS:
                run_folder = Path(folder) / f"{number}-{'-'.join(map(str, kills))}"
                row = _run(run_folder, kills, chance)
                row["loss_differs_by"] = _difference(_losses(run_folder), expected)
                line = json.dumps(row)
                print(line, flush=True)
                file.write(f"{line}\n")
                file.flush()


def _run(folder: Path, kills: Sequence[int], chance: random.Random) -> dict[str, object]:
    """Train, kill ranks on the way, and return what came of it."""
    words = [word for each in (*_SETTINGS, f"run.folder={folder}") for word in ("--set", each)]
    command = [sys.executable, "-m", "jaxpipe", "train", _CONFIG, *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as p:
        try:
            seconds = [_kill(p, folder, rank, chance, number) for number, rank in enumerate(kills)]
            told, _ = p.communicate(timeout=_PATIENCE_S)
        finally:
            p.kill()  # and its ranks with it, if it is not over
    metrics = read_metrics(folder / "metrics.jsonl")
    return {
        "killed": list(kills),
        "exit_code": p.returncode,
        "seconds_to_next_step": seconds,
        "steps": len(metrics),
        "each_step_once": [m.step for m in metrics] == list(range(1, _STEPS + 1)),
        "said": [line for line in told.splitlines() if " go on " in line or "Error" in line],
    }


def _kill(
    process: subprocess.Popen[str], folder: Path, rank: int, chance: random.Random, number: int
) -> float:
    """Kill a rank once some steps are done, and return how long it took until the next one."""
    begins = number + 1
    _wait_until(lambda: len(_steps(folder, begins)) >= 3)
    time.sleep(chance.uniform(0.0, 0.5))
    children = psutil.Process(process.pid).children(recursive=True)
    alive = sorted(
        (here.rank, child) for child in children if (here := seat(child.environ())) is not None
    )
    alive[rank][1].kill()
    start_s = time.monotonic()
    _wait_until(lambda: len(_steps(folder, begins + 1)) > 0)
    return round(time.monotonic() - start_s, 3)


def _steps(folder: Path, begins: int) -> list[str]:
    """Return the lines of steps since training has begun for the given time."""
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    heads = [i for i, line in enumerate(lines) if line.startswith('{"run"')]
    return lines[heads[begins - 1] + 1 :] if len(heads) >= begins else []


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline_s:
            raise TimeoutError("it does not train")
        time.sleep(0.005)


def _losses(folder: Path) -> list[float]:
    return [m.loss for m in read_metrics(folder / "metrics.jsonl")]


def _difference(losses: Sequence[float], expected: Sequence[float]) -> float | None:
    """Return by how much the losses differ at most, relatively."""
    if len(losses) != len(expected):
        return None
    return max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))


if __name__ == "__main__":
    main()
