"""How soon a stopped or killed rank is found where hosts share no folder, and where they do.

Each rank works in a folder of its own, which `mpirun --wdir` gives it, and `run.folder` is a
relative path: so ranks of one machine see different folders, as on hosts with disks of their own.

    python -m experiments.faults.own_disks [--trials N]
"""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from experiments.table import markdown, write_csv
from jaxpipe.chaos.harness.processes import descendants_of, ranks_among, wait_for_ends
from jaxpipe.chaos.harness.tiny_run import environment, tree, write_dataset
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command
from jaxpipe.runtime.watchdog import read_cause
from jaxpipe.topo.toml_text import toml_text

HERE = Path(__file__).parent
_SETTLED_STEPS, _NEVER, _PATIENCE_S = 30, 10**6, 400.0
_PLAN = {"cluster": "two-region", "stages": 2, "replicas": 1, "schedule": "1f1b"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Seconds from the signal to rank `victim` until a cause was there, and until all had ended.

    `first_s` is that of the first folder, `everywhere` whether all folders had it in the end. A
    killed rank leaves no cause: its own `mpirun` ends the job.
    """

    fault: str
    folders: str
    victim: int
    first_s: float | None
    everywhere: bool
    named: int | None
    gone_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A run that was started, and the run folder that each rank sees."""

    process: subprocess.Popen[bytes]
    folders: tuple[Path, ...]


@contextmanager
def _training(root: Path, dataset: Path, *, is_shared: bool) -> Iterator[_Run]:
    """Start two ranks, each in its own folder or both in one, and wait until they have settled."""
    hosts = [root / ("host" if is_shared else f"host-{rank}") for rank in range(2)]
    for host in hosts:
        host.mkdir(parents=True, exist_ok=True)
    endless = {"steps": _NEVER, "eval_every": _NEVER}
    sections = tree(Path("run"), dataset, plan=_PLAN, train=endless, checkpoint={"every": _NEVER})
    config = root / "config.toml"
    config.write_text(toml_text(sections))
    program = (sys.executable, "-P", "-m", "jaxpipe", "train", str(config))
    launcher, *options = launch_command(find_mpirun(), num_ranks=1)
    first, second = (["-n", "1", "--wdir", str(host), *program] for host in hosts)
    general = [each for each in options if each not in ("-n", "1")]
    with (root / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [launcher, *general, *first, ":", *second],
            env=environment(dataset),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    run = _Run(process=process, folders=tuple(host / "run" for host in hosts))
    try:
        metrics = run.folders[0] / "metrics.jsonl"
        _wait(lambda: len(read_metrics(metrics)) >= _SETTLED_STEPS)
        yield run
    finally:
        process.kill()
        process.wait()


def _wait(is_so: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s, "it takes too long"
        time.sleep(0.02)


def trial(root: Path, dataset: Path, *, fault: str, is_shared: bool, victim: int) -> Trial:
    """Train, stop or kill a rank, and wait until the job has ended."""
    with _training(root, dataset, is_shared=is_shared) as run:
        there = descendants_of(run.process.pid)
        job = [run.process.pid, *(each.pid for each in there)]
        number = signal.SIGSTOP if fault == "stop" else signal.SIGKILL
        ranks_among(there)[victim].send_signal(number)
        begin_s, first_s = time.monotonic(), None
        if fault == "stop":
            _wait(lambda: any(read_cause(folder) for folder in run.folders))
            first_s = time.monotonic() - begin_s
        _wait(lambda: run.process.poll() is not None)
        gone_s = wait_for_ends(job, timeout_s=_PATIENCE_S) - begin_s
    causes = [read_cause(folder) for folder in run.folders]
    named = {cause.rank for cause in causes if cause is not None}
    return Trial(
        fault=fault,
        folders="shared" if is_shared else "own",
        victim=victim,
        first_s=first_s,
        everywhere=all(causes),
        named=named.pop() if len(named) == 1 else None,
        gone_s=gone_s,
    )


def rows(trials: list[Trial]) -> list[dict[str, str]]:
    """Return a row per fault and kind of folder: medians, minima and maxima."""
    table = []
    for fault, folders in dict.fromkeys((each.fault, each.folders) for each in trials):
        of = [each for each in trials if (each.fault, each.folders) == (fault, folders)]
        found = [each.first_s for each in of if each.first_s is not None]
        table.append(
            {
                "fault": fault,
                "folders": folders,
                "trials": str(len(of)),
                "found_s": _spread(found) if found else "",
                "named": str(sum(each.named == each.victim for each in of)),
                "cause in all folders": str(sum(each.everywhere for each in of)),
                "gone_s": _spread([each.gone_s for each in of]),
            }
        )
    return table


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f}, {min(values):.2f} to {max(values):.2f}"


def main() -> None:
    """Measure, print the table, and write all trials."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5)
    count = parser.parse_args().trials
    with TemporaryDirectory() as name:
        root = Path(name)
        dataset = write_dataset(root / "data")
        trials = [
            trial(
                root / f"{fault}-{is_shared}-{i}",
                dataset,
                fault=fault,
                is_shared=is_shared,
                victim=i % 2,
            )
            for i in range(count)
            for fault in ("stop", "kill")
            for is_shared in (False, True)
        ]
    print(markdown(rows(trials)))
    write_csv([asdict(each) for each in trials], HERE / "results" / "own_disks" / "trials.csv")


if __name__ == "__main__":
    main()
