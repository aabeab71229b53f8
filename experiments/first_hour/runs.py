"""Mistakes with a run: two ranks train a small model, and are stopped, killed or called wrongly."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from experiments.first_hour.mistakes import CONFIG
from experiments.first_hour.sandbox import JAXPIPE, Ended, Sandbox
from experiments.first_hour.trial import Trial
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.runtime.watchdog import read_heartbeats

SMALL = ("model.num_layers=2", "model.dim=16", "model.num_heads=2", "sample.tokens=0")
"""Settings of a model that compiles in seconds."""
_STARTS_WITHIN_S = 400.0
_VICTIM = 1
_ADDRESS_SPACE = 7_000_000_000
"""Bytes; of it, JAX maps far more than it uses."""
_LONG = (
    *("model.num_layers=2", "model.dim=1024", "model.num_heads=2", "sample.tokens=0"),
    *("model.sequence=40000", "train.sequence=40000", "train.batch=1", "train.eval_batches=1"),
)
"""A model whose attention takes 16 GB for one sequence."""
_TWO_GIB = """
name = 'small'
[[hosts]]
devices = 2
memory_gib = 2
tflops = 1
[inside_host]
latency_ms = 0.01
bandwidth_gbps = 30
"""


@dataclass(slots=True)
class Trained:
    """A folder with a run of three steps, trained once and copied for each trial."""

    folder: Path
    _is_made: bool = field(default=False, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def copy(self, box: Sandbox) -> None:
        """Put the configuration, its dataset and its run into the folder of a trial."""
        with self._lock:
            if not self._is_made:
                self.folder.mkdir(parents=True)
                done = train(Sandbox(self.folder, limit_s=box.limit_s), "train.steps=3")
                assert done.code == 0, done.err
                self._is_made = True
        shutil.copytree(self.folder, box.folder, dirs_exist_ok=True)


def run_trials(folder: Path) -> tuple[Trial, ...]:
    """Return the trials; the run that some of them share is trained in a folder."""
    trained = Trained(folder)

    def then(*words: str) -> Callable[[Sandbox], Ended]:
        return lambda box: _then(box, trained, *words)

    def again(*words: str) -> Callable[[Sandbox], Ended]:
        return then("train", "c.toml", *as_set("train.steps=3", *SMALL), *words)

    return (
        Trial(
            what="`train` again without `--resume`",
            before="+",
            run=again(),
            code=2,
            words=("continue with --resume, or name another folder",),
        ),
        Trial(
            what="`--resume` of a complete run",
            before="silent for 43 s, compiles, repeats the sample",
            run=again("--resume"),
            code=0,
            words=("the run is complete",),
        ),
        Trial(
            what="`trace --step 80` of three steps",
            before="+",
            run=then("trace", "run", "--step", "80"),
            code=2,
            words=("choose from [1, 2, 3]",),
        ),
        Trial(
            what="`mpirun -n 3` for two ranks",
            before="+",
            run=lambda box: train(box, by=("mpirun", "--oversubscribe", "-n", "3")),
            code=2,
            words=("`plan` has 2 ranks, but 3 were started; use mpirun -n 2",),
        ),
        Trial(
            what="Ctrl-C",
            before="exit 130, nothing said, nothing saved",
            run=lambda box: _struck(box, _interrupt),
            code=128 + signal.SIGINT,
            words=("stopped on request after step", "checkpoint ", "--resume"),
        ),
        Trial(
            what="SIGTERM",
            before="+ saves, exit 143",
            run=lambda box: _struck(box, lambda job: job.send_signal(signal.SIGTERM)),
            code=128 + signal.SIGTERM,
            words=("stopped on request after step", "checkpoint ", "--resume"),
        ),
        Trial(
            what="kill -9 of a rank",
            before="+ named, but no `next:`",
            run=lambda box: _struck(box, lambda _: _kill(box)),
            code=128 + signal.SIGKILL,
            words=("rank 1",),
        ),
        Trial(
            what="a sequence whose attention takes 16 GB, in 7 GB of address space",
            before="RESOURCE_EXHAUSTED without a hint",
            run=lambda box: train(
                box, *_LONG, by=("prlimit", f"--as={_ADDRESS_SPACE}"), settings=()
            ),
            code=1,
            words=("RESOURCE_EXHAUSTED", "lower `plan.microbatch`"),
        ),
        Trial(
            what="the same on devices whose memory is described",
            before="not checked",
            run=_described,
            code=2,
            words=("lower `plan.microbatch`",),
        ),
    )


def train(
    box: Sandbox, *changes: str, by: tuple[str, ...] = (), settings: tuple[str, ...] = SMALL
) -> Ended:
    """Train two ranks in the folder, started `by` another program if one is given."""
    prepare(box)
    words = ("train", "c.toml", *as_set(*settings, *changes))
    return box.run(*_found(by), str(JAXPIPE), *words)


def prepare(box: Sandbox) -> None:
    """Write the configuration of two ranks, and its dataset."""
    box.write("c.toml", CONFIG)
    done = box.jaxpipe("data", "prepare", "--out", "data")
    assert done.code == 0, done.err


def as_set(*settings: str) -> tuple[str, ...]:
    """Return settings as options of a command."""
    return tuple(word for setting in settings for word in ("--set", setting))


def _found(by: tuple[str, ...]) -> tuple[str, ...]:
    """Take a program of this environment, where there is one, with what it asks of root."""
    if not by or not JAXPIPE.with_name(by[0]).exists():
        return by
    root = ("OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
    return ("env", *root, str(JAXPIPE.with_name(by[0])), *by[1:])


def _then(box: Sandbox, trained: Trained, *words: str) -> Ended:
    trained.copy(box)
    return box.jaxpipe(*words)


def _described(box: Sandbox) -> Ended:
    prepare(box)
    box.write("small.toml", _TWO_GIB)
    return box.jaxpipe("show", "c.toml", *as_set("plan.cluster=small.toml", *_LONG))


def _struck(box: Sandbox, strike: Callable[["subprocess.Popen[str]"], object]) -> Ended:
    """Train without an end, and do something to the run after its first step."""
    prepare(box)
    settings = as_set(*SMALL, "train.steps=1000000", "train.eval_every=1000000")
    with subprocess.Popen(
        # Started in the background of a shell, this process ignores Ctrl-C, and so would the run.
        ["env", "--default-signal=INT", str(JAXPIPE), "train", "c.toml", *settings],
        cwd=box.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,  # as a shell does
    ) as job:
        try:
            deadline_s = time.monotonic() + _STARTS_WITHIN_S
            while not read_metrics(box.folder / "run" / "metrics.jsonl"):
                if time.monotonic() > deadline_s:
                    return Ended(code=None, seconds=_STARTS_WITHIN_S, out="", err="")
                time.sleep(0.1)
            begin_s = time.perf_counter()
            strike(job)
            out, err = job.communicate(timeout=box.limit_s)
        except subprocess.TimeoutExpired:
            return Ended(code=None, seconds=box.limit_s, out="", err="")
        finally:
            job.kill()
    return Ended(code=job.returncode, seconds=time.perf_counter() - begin_s, out=out, err=err)


def _interrupt(job: "subprocess.Popen[str]") -> None:
    os.killpg(job.pid, signal.SIGINT)


def _kill(box: Sandbox) -> None:
    seen = read_heartbeats(box.folder / "run", range(_VICTIM, _VICTIM + 1))
    os.kill(seen[_VICTIM].process, signal.SIGKILL)
