"""A tiny run, started as a user starts it, which must leave nothing behind.

::

    jaxpipe run ── jaxpipe train ── mpirun ─┬─ rank 0        each process has the path of the
                                            └─ rank 1 ...    configuration in its command line

All that belongs to a run lies in one folder: `config.toml`, `run/`, `stdout.txt`, `stderr.txt`.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from jaxpipe.chaos.harness.processes import (
    descendants_of,
    psutil,
    ranks_among,
    remove,
    shared_memory_of,
)
from jaxpipe.chaos.harness.trial import expect
from jaxpipe.errors import RunError
from jaxpipe.runtime.process.compile_cache import variables_of_cache
from jaxpipe.runtime.process.process_signals import die_with_parent
from jaxpipe.topo.toml_text import toml_text

NUM_RANKS = 4
ENDLESS = {"steps": 10**6, "eval_every": 10**6}
"""The section `train` of a run that ends by its fault."""
_GONE_WITHIN_S = 5.0
_POLL_S = 0.05
_STARTS_WITHIN_S = 400.0  # four ranks that compile, on two busy cores


def write_dataset(folder: Path) -> Path:
    """Prepare a small generated text in a folder, and return the folder of the dataset."""
    from jaxpipe.runtime.data import Source, prepare

    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "text.txt"
    text.write_text("".join(f"{i} plus {i} is {2 * i}; " for i in range(400)))
    prepare(Source(path=text), folder / "dataset")
    return folder / "dataset"


def tree(run: Path, dataset: Path, /, **sections: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the configuration of a tiny GPT on 2 stages x 2 replicas, changed by `sections`."""
    base: dict[str, dict[str, Any]] = {
        "run": {"folder": str(run), "seed": 1, "timeout_s": 60.0},
        "data": {"folder": str(dataset)},
        "model": {"num_layers": 2, "dim": 16, "num_heads": 2, "sequence": 16, "vocabulary": 256},
        "plan": {
            "cluster": "laptop",
            "stages": 2,
            "replicas": 2,
            "microbatch": 1,
            "schedule": "zb-h1",  # has every instruction of the kill points
        },
        "train": {"steps": 10, "batch": 8, "eval_every": 2, "eval_batches": 1},
        "optimizer": {"learning_rate": 1e-2, "warmup_steps": 1},
        "checkpoint": {"every": 1, "keep": 2},
        "sample": {"tokens": 0},
    }
    return changed(base, sections)


def changed(
    base: Mapping[str, Mapping[str, Any]], sections: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return sections with some of their values changed, and some new.

    >>> changed({"run": {"seed": 1, "folder": "a"}}, {"run": {"seed": 2}, "plan": {"stages": 2}})
    {'run': {'seed': 2, 'folder': 'a'}, 'plan': {'stages': 2}}
    """
    return {name: {**base.get(name, {}), **sections.get(name, {})} for name in {**base, **sections}}


def write_config(folder: Path, dataset: Path, /, **sections: Mapping[str, Any]) -> Path:
    """Write the configuration of a tiny run into a folder of its own, and return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.toml"
    path.write_text(toml_text(tree(folder / "run", dataset, **sections)))
    return path


def environment(dataset: Path) -> dict[str, str]:
    """Return the environment of runs; the compilation cache is next to the dataset."""
    ours = {
        **variables_of_cache(dataset.parent / "compiled"),
        "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",  # MPICH: more ranks than cores
    }
    return {**ours, **os.environ}


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A started run in its `folder`, and the shared memory that its ranks were seen to map."""

    config: Path
    command: str
    folder: Path
    process: subprocess.Popen[bytes]
    shared_memory: set[str] = field(default_factory=set[str])

    @property
    def stdout(self) -> str:
        """The standard output so far."""
        return self.config.with_name("stdout.txt").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """The standard error so far."""
        return self.config.with_name("stderr.txt").read_text(errors="replace")

    def num_steps(self) -> int:
        """Return the number of steps in the metrics."""
        path = self.folder / "metrics.jsonl"
        return path.read_bytes().count(b'"step"') if path.exists() else 0

    def ranks(self) -> dict[int, psutil.Process]:
        """Return the processes of the current ranks, and note their shared memory."""
        found = ranks_among(descendants_of(self.process.pid))
        for process in found.values():
            self.shared_memory.update(shared_memory_of(process.pid))
        return found

    def job(self) -> list[int]:
        """Return the processes of the current attempt: mpirun and its ranks."""
        parents = [self.process.pid]
        if self.command == "run":
            parents = [child.pid for child in psutil.Process(self.process.pid).children()]
        return [each.pid for parent in parents for each in descendants_of(parent)]

    def wait(self, *, timeout_s: float) -> int:
        """Return the exit code.

        Raises:
            RunError: it does not end.
        """
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise RunError(f"the run does not end within {timeout_s:g} s") from None

    def wait_until(self, is_so: Callable[[], bool], *, what: str, timeout_s: float) -> None:
        """Wait for a condition, while the run continues.

        Raises:
            RunError: the run ends first, or it takes too long.
        """
        deadline_s = time.monotonic() + timeout_s
        while not is_so():
            if (code := self.process.poll()) is not None:
                raise RunError(f"the run ended with exit code {code} before {what}")
            if time.monotonic() > deadline_s:
                raise RunError(f"it takes more than {timeout_s:g} s until {what}")
            time.sleep(_POLL_S)

    def wait_for_ranks(self) -> dict[int, psutil.Process]:
        """Return the processes of all ranks, once all have started.

        Raises:
            RunError: they do not start in time.
        """
        ranks: dict[int, psutil.Process] = {}

        def are_there() -> bool:
            ranks.update(self.ranks())
            return len(ranks) == NUM_RANKS

        self.wait_until(are_there, what="all ranks have started", timeout_s=_STARTS_WITHIN_S)
        return ranks

    def wait_for_steps(self, steps: int, *, timeout_s: float = _STARTS_WITHIN_S) -> None:
        """Wait until this many steps are done.

        Raises:
            RunError: they are not, in time.
        """
        what = f"{steps} steps are done"
        self.wait_until(lambda: self.num_steps() >= steps, what=what, timeout_s=timeout_s)

    def settle(self, *, steps: int, after_s: float) -> dict[int, psutil.Process]:
        """Return the processes of all ranks, some time after `steps` steps are done.

        Raises:
            RunError: the ranks do not start, or the steps are not done, in time.
        """
        ranks = self.wait_for_ranks()
        self.wait_for_steps(steps)
        time.sleep(after_s)
        self.ranks()  # notes the memory that they share
        return ranks

    def expect_success(self, code: int) -> None:
        """Check the exit code of the run.

        Raises:
            RunError: it is not 0.
        """
        expect(code == 0, f"the run ends with exit code {code}: {self.stdout[-600:]}")

    def expect_no_shrinking(self) -> None:
        """Check that each attempt had all ranks.

        Raises:
            RunError: one had fewer.
        """
        expect("with fewer ranks" not in self.stdout, f"it has shrunk: {self.stdout[-600:]}")


@contextmanager
def started(
    config: Path,
    dataset: Path,
    *,
    command: str = "train",
    arguments: Sequence[str] = (),
    before: Sequence[str] = (),
    folder: Path | None = None,
) -> Iterator[Started]:
    """Start `BEFORE jaxpipe COMMAND CONFIG ARGUMENTS`; nothing of it may be left after the block.

    The `folder` of the run is by default next to the configuration.

    Raises:
        RunError: a process or a file in shared memory was left behind; it is removed.
    """
    out, err = config.with_name("stdout.txt"), config.with_name("stderr.txt")
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [*before, sys.executable, "-P", "-m", "jaxpipe", command, str(config), *arguments],
            env=environment(dataset),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=partial(die_with_parent, signal.SIGTERM),  # noqa: PLW1509  only prctl
        )
    folder = config.with_name("run") if folder is None else folder
    run = Started(config=config, command=command, folder=folder, process=process)
    try:
        yield run
    finally:
        process.kill()
        process.wait()
        # Processes first: those that are left still map the memory.
        left = [*remove(config, within_s=_GONE_WITHIN_S), *_remove_memory(run)]
    if left:
        raise RunError(f"left behind: {', '.join(left)}")


def undisturbed(config: Path, dataset: Path, *, timeout_s: float) -> Path:
    """Train without faults, and return the folder of the run.

    Raises:
        RunError: it did not end with exit code 0.
    """
    with started(config, dataset) as run:
        code = run.wait(timeout_s=timeout_s)
    expect(code == 0, f"an undisturbed run ended with exit code {code}: {run.stderr}")
    return run.folder


def _remove_memory(run: Started) -> list[str]:
    files = [path for path in sorted(run.shared_memory) if Path(path).exists()]
    for path in files:
        Path(path).unlink(missing_ok=True)
    return files
