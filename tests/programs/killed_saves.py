"""Saves checkpoints in processes that are killed, once before each call that changes the disk.

Prints a line of JSON for each: the scenario, the call, and the value that a resume then finds. It
imports no jax, so that it may fork.
"""

import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from jaxpipe.runtime.checkpoint import (
    begin_checkpoint,
    commit,
    newest_valid,
    prune,
    streamed_shard,
    write_shard,
)

DISK_CALLS: tuple[tuple[object, str], ...] = (
    *((Path, name) for name in ("mkdir", "rename", "replace", "unlink", "write_bytes")),
    *((os, "fsync"), (shutil, "rmtree"), (streamed_shard, "_write")),
)
SCENARIOS = {
    "a later step": (2, 1),
    "the same step again": (1, 1),
    "a later step, keep two": (2, 2),
}


def save(run: Path, *, step: int, value: float, keep: int) -> None:
    folder = begin_checkpoint(run, step=step)
    entries = [
        entry
        for stage in range(2)
        for entry in write_shard(folder, f"stage-{stage}", {f"{stage}": np.full(1000, value)})
    ]
    commit(folder, entries, {})
    prune(run, keep=keep, newest=step)


def kill_before(call: int) -> None:
    """Kill this process before the given call that changes the disk, counted over all of them."""
    calls = count()

    def killing(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def kill_or_call(*args: object, **kwargs: object) -> object:
            if next(calls) == call:
                os.write(1, f"{name}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return kill_or_call

    for owner, name in DISK_CALLS:
        setattr(owner, name, killing(name, getattr(owner, name)))


def killed_in(save_again: partial[None], *, call: int) -> str | None:
    """Return the call before which a child was killed, None if it had fewer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 1)
        kill_before(call)
        save_again()
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        name = pipe.read().strip()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) == bool(name), (status, name)
    return name or None


def main(folder: Path) -> None:
    logging.disable()
    for scenario, (step, keep) in SCENARIOS.items():
        for call in count():
            run = folder / f"{step}-{keep}-{call}"
            save(run, step=0, value=0.0, keep=2)
            save(run, step=1, value=1.0, keep=2)
            name = killed_in(partial(save, run, step=step, value=2.0, keep=keep), call=call)
            if name is None:
                break
            found = newest_valid(run)
            values = {float(each.min()) for each in found.read(found.tensors).values()}
            line = {"scenario": scenario, "call": name, "values": sorted(values)}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()  # a child would write it once more
            save(run, step=3, value=3.0, keep=1)
            assert newest_valid(run).step == 3
            assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000003"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
