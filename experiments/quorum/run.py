"""Train islands under kills: `python -m experiments.quorum.run [quorum|barrier|synchronous ...]`.

Eight islands of one rank each; the last one is three times as slow, and every minute a rank of
another one is killed, in an order that the seed decides. With `quorum` islands are runs of their
own, merged by a server; with `barrier` they are those of an outer loop in one run, as supervised.
`synchronous` is one run with the batch of all islands and no outer loop, without kills and pace,
for as many tokens as the quorum had. Rows are appended to `results/runs.csv`; a run that has one
is not made again.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from experiments.finetune.command import jaxpipe, settings
from experiments.quorum.pace import STEP_S
from experiments.table import Row, append_csv, read_csv, write_csv
from jaxpipe.outer.merge_log import Merge
from jaxpipe.run.quorum.merge_log_file import read_log
from jaxpipe.runtime.metrics.records import read_metrics

_HERE = Path(__file__).parent
_RUNS, _GOODPUT = _HERE / "results" / "runs.csv", _HERE / "results" / "goodput.csv"
_PLACE = Path("runs/quorum").absolute()
_MARK = "JAXPIPE_EXPERIMENT_ISLAND"
_OUTER = ("every", "learning_rate", "momentum")
_START_S, _END_S = 600.0, 120.0

Case = Mapping[str, Any]


def main(systems: Sequence[str]) -> None:
    """Run the systems, by default all."""
    case = tomllib.loads((_HERE / "cases.toml").read_text())
    for folder in (_PLACE, _RUNS.parent):
        folder.mkdir(parents=True, exist_ok=True)
    known = {(row["system"], row["seed"]) for row in read_csv(_RUNS)} if _RUNS.exists() else set()
    for seed in case["seeds"]:
        for system in systems or ("quorum", "barrier", "synchronous"):
            if (system, str(seed)) in known:
                continue
            row = {"system": system, "seed": seed, **_SYSTEMS[system](case, seed)}
            append_csv(row, _RUNS)
            print(row, flush=True)
    report(case)


def report(case: Case) -> None:
    """Write the goodput and the losses beside those of the synchronous run."""
    runs = read_csv(_RUNS)
    plain = {row["seed"]: row["loss"] for row in runs if row["system"] == "synchronous"}
    rows: list[Row] = [
        {
            "system": row["system"],
            "islands": case["islands"],
            "seed": row["seed"],
            "goodput": row["goodput"],
            "tokens": row["tokens"],
            "loss": row["loss"],
            "synchronous_loss": plain.get(row["seed"], ""),
        }
        for row in runs
        if row["system"] != "synchronous"
    ]
    write_csv(rows, _GOODPUT)


def quorum(case: Case, seed: int) -> Row:
    """Train islands that a server merges."""
    folder = _fresh(f"quorum-{seed}")
    section = [f"quorum.{name}={case[name]}" for name in ("islands", "least", "grace_s", *_OUTER)]
    batch = f"train.batch={case['batch']}"
    common = [*case["settings"], *section, batch, f"run.seed={seed}"]
    server = _start("merge", case, common, "--out", folder / "server")
    file = folder / "server" / "merge.json"
    _when(file.exists, [server])
    islands: list[subprocess.Popen[bytes]] = []
    for number, step_s in enumerate(_paces(case)):
        own = [f"quorum.server={file}", f"quorum.island={number}"]
        run = [f"run.folder={folder / f'island-{number}'}"]
        environment = {STEP_S: str(step_s), _MARK: str(number)}
        islands.append(_supervised(case, [*common, *own, *run], environment))
    begin_s = _when(lambda: bool(_merged_tokens(folder / "server")), [server, *islands])
    before = _merged_tokens(folder / "server")
    kills = _kill(case, seed, lambda island: _kill_ranks(str(island)))
    seconds, tokens = time.monotonic() - begin_s, _merged_tokens(folder / "server") - before
    _end(islands)
    _end([server])
    # All have delivered what they had, so that the newest checkpoint is the last anchor.
    newest = max(folder.glob("island-*/metrics.jsonl"), key=lambda path: path.stat().st_mtime)
    return _row(case, newest.parent, tokens=tokens, seconds=seconds, kills=kills)


def barrier(case: Case, seed: int) -> Row:
    """Train islands of one run, which is supervised."""
    folder = _fresh(f"barrier-{seed}") / "run"
    number = case["islands"]
    changes = [
        *case["settings"],
        f"plan.replicas={number}",
        f"train.batch={case['batch'] * number}",
        f"outer.islands={number}",
        *(f"outer.{name}={case[name]}" for name in _OUTER),
        f"run.folder={folder}",
        f"run.seed={seed}",
    ]
    paces = ",".join(map(str, _paces(case)))
    run = _supervised(case, changes, {STEP_S: paces, _MARK: "all"})
    log = folder / "metrics.jsonl"
    begin_s = _when(lambda: bool(_steps(log)), [run])
    before = _steps(log)
    kills = _kill(case, seed, lambda island: _kill_ranks("all", rank=island))
    seconds = time.monotonic() - begin_s
    # What was trained since the last outer step may still be lost.
    steps = (_steps(log) - before) // case["every"] * case["every"]
    _end([run])
    tokens = steps * case["batch"] * number * _sequence(folder)
    return _row(case, folder, tokens=tokens, seconds=seconds, kills=kills)


def synchronous(case: Case, seed: int) -> Row:
    """Train one run with the batch of all islands, for as many tokens as the quorum."""
    quorum_of = {row["seed"]: row for row in read_csv(_RUNS) if row["system"] == "quorum"}
    tokens, number = float(quorum_of[str(seed)]["tokens"]), case["islands"]
    folder = _fresh(f"synchronous-{seed}") / "run"
    sequence = _sequence(_PLACE / f"quorum-{seed}" / "island-0")
    steps = round(tokens / (case["batch"] * number * sequence))
    changes = [
        *case["settings"],
        f"train.batch={case['batch'] * number}",
        f"train.steps={steps}",
        f"run.folder={folder}",
        f"run.seed={seed}",
    ]
    jaxpipe("train", case["config"], *settings(*changes))
    tokens = steps * case["batch"] * number * sequence
    return {"seconds": "", "kills": 0, "tokens": tokens, "goodput": "", "loss": _loss(folder)}


_SYSTEMS = {"quorum": quorum, "barrier": barrier, "synchronous": synchronous}


def _paces(case: Case) -> list[float]:
    """Return the seconds of a step of each island."""
    return [case["step_s"]] * (case["islands"] - 1) + [case["step_s"] * case["slower"]]


def _row(case: Case, folder: Path, *, tokens: float, seconds: float, kills: int) -> Row:
    of_step = case["batch"] * _sequence(folder)
    ideal = sum(of_step * seconds / step_s for step_s in _paces(case))
    return {
        "seconds": f"{seconds:.0f}",
        "kills": kills,
        "tokens": int(tokens),
        "goodput": f"{tokens / ideal:.3f}",
        "loss": _loss(folder),
    }


def _loss(folder: Path) -> str:
    """Return the held-out loss of the newest checkpoint of a run, in nats per token."""
    text = jaxpipe("evaluate", folder)
    loss = re.search(r"([0-9.]+) nats", text)
    assert loss is not None, text
    return loss[1]


def _kill(case: Case, seed: int, kill: Callable[[int], object]) -> int:
    """Wait for the minutes of the case, and kill a rank of an island at times; count the kills."""
    lot, kills = random.Random(seed), 0
    until_s = time.monotonic() + 60 * case["minutes"]
    while (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(case["kill_every_s"], left_s))
        if time.monotonic() < until_s:
            island = lot.randrange(case["islands"])
            kill(island)
            kills += 1
            print(f"killed a rank of island {island}", flush=True)
    return kills


def _kill_ranks(island: str, *, rank: int | None = None) -> None:
    """Kill the ranks of a run; its supervisor stays."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environment = (folder / "environ").read_bytes().split(b"\0")
            words = (folder / "cmdline").read_bytes()
            is_rank = rank is None or f"OMPI_COMM_WORLD_RANK={rank}".encode() in environment
            is_ours = f"{_MARK}={island}".encode() in environment
            if is_ours and is_rank and b"jaxpipe.cli.train" in words:
                os.kill(int(folder.name), signal.SIGKILL)


def _supervised(
    case: Case, changes: Sequence[str], environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    words = ("--restarts", "1000", "--hooks", "experiments.quorum.pace:hooks")
    return _start("run", case, changes, *words, environment=environment)


def _start(
    command: str,
    case: Case,
    changes: Sequence[str],
    *words: str | Path,
    environment: Mapping[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    line = [sys.executable, "-m", "jaxpipe", command, case["config"], *settings(*changes)]
    log = (_PLACE / "log.txt").open("ab")
    with log:
        return subprocess.Popen(
            [*line, *map(str, words)],
            # Ranks look for modules there, and not in the folder that they start in.
            env={**os.environ, "PYTHONPATH": str(_HERE.parents[1]), **(environment or {})},
            stdout=log,
            stderr=log,
        )


def _end(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Ask runs to save and stop, the first ones first."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            process.kill()


def _when(is_so: Callable[[], bool], processes: Sequence["subprocess.Popen[bytes]"]) -> float:
    """Return the time at which something has become true that these processes bring about.

    Raises:
        RuntimeError: one of them has ended, or it takes longer than ten minutes.
    """
    until_s = time.monotonic() + _START_S
    while time.monotonic() < until_s:
        with suppress(OSError):
            if is_so():
                return time.monotonic()
        if any(process.poll() is not None for process in processes):
            break
        time.sleep(0.1)
    raise RuntimeError(f"the runs have not begun; {_PLACE / 'log.txt'} says why")


def _merged_tokens(server: Path) -> float:
    """Return the tokens of all merges that weigh something."""
    merges = [event for event in read_log(server) if isinstance(event, Merge)]
    return sum(part.tokens for merge in merges for part in merge.islands if part.weight)


def _steps(log: Path) -> int:
    """Return the steps of a run so far."""
    return max((step.step for step in read_metrics(log)), default=0)


def _sequence(folder: Path) -> int:
    """Return the tokens of a sample of a run."""
    tree = tomllib.loads((folder / "run.toml").read_text())
    return tree.get("train", {}).get("sequence") or tree["model"]["sequence"]


def _fresh(name: str) -> Path:
    folder = _PLACE / name
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


if __name__ == "__main__":
    main(sys.argv[1:])
