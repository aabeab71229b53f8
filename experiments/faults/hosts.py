"""Seconds without a step when one of eight hosts is lost, and when an eighth joins.

Eight ranks of a tiny model on eight emulated hosts, namespaces with a disk each, under `jaxpipe run
--hosts`. Times are measured: from the last step of the one attempt to the first of the next.

    python -m experiments.faults.hosts [--trials N]        needs root
"""

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from experiments.table import markdown, write_csv
from jaxpipe.chaos.harness.emulated_hosts import HostsRun, hosts_run
from jaxpipe.chaos.harness.tiny_run import write_dataset
from jaxpipe.chaos.host import disappear
from jaxpipe.chaos.join import join
from jaxpipe.runtime.metrics.records import METRICS_FILE

HERE = Path(__file__).parent
_NUM_HOSTS = 8
_CLUSTER = f"homogeneous:hosts={_NUM_HOSTS},delay_ms=0,bandwidth_gbps=1e7"
_SETTLED_STEPS, _NEVER = 20, 10**6
_MODEL = {"num_layers": 2}
_TRAIN = {"steps": _NEVER, "batch": 24, "eval_every": _NEVER}
_CHECKPOINT = {"every": 5}
_EIGHT = {"stages": 1, "replicas": 8, "schedule": "1f1b"}
_SEVEN = {
    **_EIGHT,
    "replicas": 7,
    "shares": [4, 4, 4, 3, 3, 3, 3],
    "devices": [f"here-{number}:0" for number in range(7)],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Seconds from the last step before to four moments of the next attempt, and the load.

    `decided_s`: the supervisor has the next plan. `started_s`: all ranks have Python, MPI and the
    plan. `ready_s`: they have compiled, and have the checkpoint. `next_step_s`: the first step has
    ended. `load` is the machine's mean number of ready processes over the minute before the end.
    """

    case: str
    decided_s: float
    started_s: float
    ready_s: float
    next_step_s: float
    load: float


def trial(case: str, folder: Path, dataset: Path) -> Trial:
    """Lose a host, or let one join, and measure the time without a step."""
    plan = _EIGHT if case == "lost" else _SEVEN
    network = hosts_run(
        folder,
        dataset,
        cluster=_CLUSTER,
        plan=plan,
        model=_MODEL,
        train=_TRAIN,
        checkpoint=_CHECKPOINT,
    )

    def change(run: HostsRun) -> None:
        if case == "lost":
            disappear(run, _NUM_HOSTS - 1)
        else:
            join(run, _NUM_HOSTS - 1)

    with network as run, ThreadPoolExecutor(1) as pool:
        run.wait_for_steps(_SETTLED_STEPS)
        changing = pool.submit(change, run)
        found = _measured(case, run)
        changing.result()
        run.started.process.terminate()
        run.started.wait(timeout_s=60.0)
    return found


def _measured(case: str, run: HostsRun) -> Trial:
    """Return the times between the steps of the first two attempts, by the file of metrics."""
    words, path = "attempt 2 continues", run.folder() / METRICS_FILE
    run.wait_until(lambda: run.said(words), what="the next attempt begins")
    # The ranks of the next attempt have not opened the file: they start now.
    last_s, decided_s = path.stat().st_mtime, time.time()
    run.wait_until(lambda: _has_started(run, words), what="the ranks have started")
    started_s = time.time()
    run.wait_until(lambda: path.stat().st_mtime > last_s, what="the ranks are ready")
    ready_s = path.stat().st_mtime
    run.wait_for_step_after(words)
    return Trial(
        case=case,
        decided_s=decided_s - last_s,
        started_s=started_s - last_s,
        ready_s=ready_s - last_s,
        next_step_s=path.stat().st_mtime - last_s,
        load=os.getloadavg()[0],
    )


def _has_started(run: HostsRun, words: str) -> bool:
    """Return whether rank 0 has said that it compiles, since these words."""
    return "compiling the stages" in run.started.stdout.partition(words)[2]


def rows(trials: list[Trial]) -> list[dict[str, str]]:
    """Return a row per case: medians, minima and maxima."""
    table: list[dict[str, str]] = []
    for case in dict.fromkeys(each.case for each in trials):
        of = [each for each in trials if each.case == case]
        table.append(
            {
                "case": case,
                "trials": str(len(of)),
                **{
                    name: _spread([getattr(each, name) for each in of])
                    for name in ("decided_s", "started_s", "ready_s", "next_step_s", "load")
                },
            }
        )
    return table


def _spread(values: list[float]) -> str:
    return f"{median(values):.1f}, {min(values):.1f} to {max(values):.1f}"


def main() -> None:
    """Measure, print the table, and write all trials."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=3)
    count = parser.parse_args().trials
    with TemporaryDirectory() as name:
        root = Path(name)
        dataset = write_dataset(root / "data")
        trials = [
            trial(case, root / f"{case}-{number}", dataset)
            for number in range(count)
            for case in ("lost", "joins")
        ]
    print(markdown(rows(trials)))
    write_csv([asdict(each) for each in trials], HERE / "results" / "hosts" / "trials.csv")


if __name__ == "__main__":
    main()
