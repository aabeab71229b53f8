"""Faults while saving: a process that saves checkpoints is killed, or its disk is full.

Killed at a named point or at a random time, it must leave a checkpoint to resume from, bit by bit
as saved, and no older than the last finished save: at most the save in flight is lost. The next
save must cope with what was left behind. If the disk is full, the process continues, and saves
again once there is space.

A kill ends a process, not the machine: the kernel still writes what it has received. That a crash
of the machine loses nothing either depends on the order of flushes, which no kill can test.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import IO

import msgspec
import numpy as np

from jaxpipe.chaos.harness.save_loop import KEEP, NUM_RANKS, Loop, content, snapshot, step_of_save
from jaxpipe.chaos.harness.save_points import SavePoint
from jaxpipe.chaos.harness.trial import Family, Setup, Trial
from jaxpipe.comm import Transport, run_ranks
from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import Checkpoint, newest_valid
from jaxpipe.runtime.checkpoint.async_saver import Saver

_ENDLESS = 1_000_000
_LARGE_BYTES = 1 << 23
_MOST_S = 1.0
_TIMEOUT_S = 60.0
_FULL_SAVES = range(3, 6)
_NUM_WITH_FULL = 8
_PER_SHARD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The output of a process before its end: its last begun save and its last finished one."""

    began: int
    saved: int
    failed: tuple[int, ...]

    @classmethod
    def of(cls, lines: list[str]) -> "Progress":
        r"""Parse the lines of output; a last one that was cut off is ignored.

        >>> Progress.of(["began 0\n", "saved 0\n", "began 1\n", "failed 1\n", "began 2"])
        Progress(began=1, saved=0, failed=(1,))
        """
        numbers: dict[str, list[int]] = {"began": [-1], "saved": [-1], "failed": []}
        for line in lines:
            if line.endswith("\n"):
                word, number = line.split()
                numbers[word].append(int(number))
        return cls(
            began=numbers["began"][-1],
            saved=numbers["saved"][-1],
            failed=tuple(numbers["failed"]),
        )


def _trials(setup: Setup) -> Iterator[Trial]:
    """Kill at each named point and at random times in turn, and fill the disk now and then."""
    points = list(SavePoint)
    for number in range(setup.seed, setup.seed + setup.num_trials):
        folder = setup.folder / f"seed-{number}"
        folder.mkdir()
        random = Random(number)
        match number % 5:
            case 0 | 3:
                # 0, 3, 5, 8, 10, ... become 0, 1, 2, 3, 4, ...: each point in turn.
                trial = _at_point(folder, points[(number * 2 // 5) % len(points)], random)
            case 1 | 4:
                trial = _at_random_time(folder, random)
            case _:
                trial = _disk_trial(folder, number // 5)
        if trial.passed:
            shutil.rmtree(folder)
        yield trial


def _at_point(folder: Path, point: SavePoint, random: Random) -> Trial:
    loop = Loop(
        folder=str(folder / "run"),
        num_saves=_ENDLESS,
        asynchronous=random.random() < 1 / 2,
        point=point.name,
        fatal=random.choice(_fatal_saves(point)),
    )
    name = f"kill at {point.name.lower().replace('_', ' ')}, {_how(loop)}"
    with _saving(loop) as process:
        lines = _rest(process)
    progress = Progress.of(lines)
    why = _judge_killed(loop, progress, code=process.returncode)
    if not why and progress.began != loop.fatal:
        why = f"it was killed in save {progress.began}, not in {loop.fatal}"
    return Trial(name=name, passed=not why, why=why)


def _fatal_saves(point: SavePoint) -> tuple[int, ...]:
    """Return saves that reach a point: only the second save of a step replaces an older one."""
    # From save 4, the first of step 3: with two checkpoints kept, one is removed.
    both = range(4, 8)
    replacing = tuple(number for number in both if number % 2)
    return replacing if point is SavePoint.OLDER_OF_SAME_STEP_NOT_ASIDE else tuple(both)


def _at_random_time(folder: Path, random: Random) -> Trial:
    shard_bytes = random.choice((_PER_SHARD_BYTES, _LARGE_BYTES))
    loop = Loop(
        folder=str(folder / "run"),
        num_saves=_ENDLESS,
        shard_bytes=shard_bytes,
        asynchronous=random.random() < 1 / 2,
    )
    after_s = random.uniform(0, _MOST_S)
    with _saving(loop) as process:
        # After `saved 0`: without a first checkpoint there is nothing to resume from.
        begin = [_stdout(process).readline() for _ in range(2)]
        time.sleep(after_s)
        process.kill()
        progress = Progress.of([*begin, *_rest(process)])
    why = _judge_killed(loop, progress, code=process.returncode)
    name = f"kill after {after_s:.3f} s of saving {shard_bytes} bytes a rank, {_how(loop)}"
    return Trial(name=name, passed=not why, why=why, figures={"saves": progress.began + 1})


def _disk_trial(folder: Path, turn: int) -> Trial:
    """Return the trials of disks in turn; without the right to mount one, a limit on files."""
    mounted = (_full_disk, None, _tight_disk)[turn % 3]
    trial = None if mounted is None else mounted(folder)
    return trial or _limited_files(folder)


def _limited_files(folder: Path) -> Trial:
    """Limit the size of files for some saves: no removed checkpoint makes room."""
    why = _saved_on(folder, full=_FULL_SAVES, failing=tuple(_FULL_SAVES))
    return Trial(name="full disk, by a limit on files", passed=not why, why=why)


def _full_disk(folder: Path) -> Trial | None:
    """Fill a disk by a file for some saves: an older checkpoint makes room for the first of them.

    The file then takes that room as well, and the last checkpoint is not removed.
    """
    with _small_disk(folder / "disk", num_checkpoints=6) as disk:
        if disk is None:
            return None
        failing = tuple(_FULL_SAVES)[1:]
        why = _saved_on(disk, full=_FULL_SAVES, failing=failing, filler=disk / "filler")
    return Trial(name="full disk, by a disk of its own", passed=not why, why=why)


def _tight_disk(folder: Path) -> Trial | None:
    """Save on a disk with room for the checkpoints that are kept, and not for one more."""
    with _small_disk(folder / "disk", num_checkpoints=KEEP) as disk:
        if disk is None:
            return None
        why = _saved_on(disk, full=range(0), failing=())
    return Trial(name=f"a disk with room for {KEEP} checkpoints", passed=not why, why=why)


def _saved_on(
    folder: Path, *, full: range, failing: tuple[int, ...], filler: Path | None = None
) -> str:
    """Save on a disk that is `full` for some saves; return what is wrong with what it leaves."""
    loop = Loop(
        folder=str(folder / "run"),
        num_saves=_NUM_WITH_FULL,
        shard_bytes=_PER_SHARD_BYTES,
        full_from=full.start,
        full_until=full.stop,
        filler=None if filler is None else str(filler),
    )
    with _saving(loop) as process:
        progress = Progress.of(_rest(process))
    return _judge_full(loop, progress, failing, code=process.returncode)


def _judge_killed(loop: Loop, progress: Progress, *, code: int) -> str:
    """Return what is wrong with the files of a killed process; empty if nothing is."""
    if code != -9:
        return f"the process was not killed, it ended with exit code {code}"
    if progress.saved < 0:
        return "it was killed before its first save was done"
    # The save in flight may have been committed before it was reported.
    return _judge_found(loop, range(progress.saved, progress.began + 1)) or _judge_next(loop)


def _judge_full(loop: Loop, progress: Progress, failing: tuple[int, ...], *, code: int) -> str:
    if code != 0:
        return f"the process did not continue, it ended with exit code {code}"
    if progress.failed != failing:
        return f"saves {failing or 'none'} should fail, {progress.failed or 'none'} failed"
    last = _NUM_WITH_FULL - 1
    return _judge_found(loop, range(last, last + 1))


def _judge_found(loop: Loop, allowed: range) -> str:
    """Return what is wrong with the newest checkpoint, which must be of an allowed save."""
    try:
        found = newest_valid(Path(loop.folder))
    except CheckpointError as error:
        return str(error)
    number = found.metadata["save"]
    if number not in allowed:
        return f"save {number} was found, not one of {allowed.start} to {allowed.stop - 1}"
    if found.step != step_of_save(number) or not _is_as_saved(found, loop, number):
        return f"save {number} differs from what was saved"
    return ""


def _judge_next(loop: Loop) -> str:
    """Save once more, as a resumed run does, and check the files."""
    run = Path(loop.folder)
    number = newest_valid(run).metadata["save"] + 1

    def save(transport: Transport) -> str | None:
        saver = Saver(transport, folder=run, keep=KEEP, timeout_s=_TIMEOUT_S)
        saver.begin(snapshot(number, rank=transport.rank, shard_bytes=loop.shard_bytes))
        return saver.finish()

    failure = run_ranks(NUM_RANKS, save)[0]
    if failure is not None:
        return f"the next save failed: {failure}"
    # Suffixes are those of folders in between: `.partial` and `.replaced`.
    left = [path.name for path in (run / "checkpoints").iterdir() if path.suffix]
    if left:
        return f"{left[0]} is still there after the next save"
    return _judge_found(loop, range(number, number + 1))


def _is_as_saved(found: Checkpoint, loop: Loop, number: int) -> bool:
    wanted: dict[str, np.ndarray] = {}
    for rank in range(NUM_RANKS):
        wanted |= content(number, rank=rank, shard_bytes=loop.shard_bytes)
    tensors = found.read(found.tensors)
    return tensors.keys() == wanted.keys() and all(
        tensors[name].tobytes() == wanted[name].tobytes() for name in wanted
    )


def _how(loop: Loop) -> str:
    return "asynchronous" if loop.asynchronous else "one after the other"


@contextmanager
def _saving(loop: Loop) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-P",
        "-m",
        "jaxpipe.chaos.harness.save_loop",
        msgspec.json.encode(loop).decode(),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _rest(process: subprocess.Popen[str]) -> list[str]:
    """Wait for the end of a process, and return its remaining output."""
    lines = _stdout(process).readlines()
    process.wait(timeout=_TIMEOUT_S)
    return lines


def _stdout(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


@contextmanager
def _small_disk(folder: Path, *, num_checkpoints: int) -> Iterator[Path | None]:
    """Mount a disk with space for some checkpoints, and half of one; None if not allowed."""
    folder.mkdir(exist_ok=True)
    size = (2 * num_checkpoints + 1) * NUM_RANKS * _PER_SHARD_BYTES // 2
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


SAVE = Family(
    name="save",
    does="kill -9 while checkpoints are saved, at named points and random times; fill the disk",
    aim="resumable, bit by bit; at most the save in flight is lost; a full disk stops nothing",
    num_trials=5,
    num_trials_full=60,
    trials=_trials,
)
