"""The samples that ranks read: recorded by hooks in each rank, and checked step by step.

`jaxpipe run CONFIG --hooks jaxpipe.chaos.harness.sample_log:recorder` puts the recorder into each
rank. It writes a line per step to `fed-PROCESS.jsonl` next to the configuration: the stages of the
rank, and a checksum for each row of the batch that it reads.
"""

import os
import re
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from jaxpipe.chaos.harness.processes import psutil
from jaxpipe.plan import Plan
from jaxpipe.runtime.data import sample
from jaxpipe.runtime.hooks import Hooks

_MOST_RANKS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FedSamples:
    """The samples of one rank in one step, which counts from 0, in one attempt of the run.

    Later attempts have larger numbers, also those of a job that continues without lost ranks.
    `rows` are checksums of the samples, by their position in the batch of all replicas.
    """

    attempt: int
    step: int
    is_first_stage: bool
    is_last_stage: bool
    rows: Mapping[int, int]


def recorder(config: Path, *, rank: int) -> "SampleRecorder":  # noqa: ARG001  a factory of hooks
    """Return the hooks of a rank, which write down its samples.

    The ranks of an attempt have the same launcher, whose start numbers the attempt.
    """
    started_s = psutil.Process(_launcher(os.environ) or os.getppid()).create_time()
    path = config.with_name(f"fed-{os.getpid()}.jsonl")
    return SampleRecorder(path, attempt=round(1000 * started_s))


def slow_recorder(config: Path, *, rank: int) -> "SampleRecorder":
    """Return the same hooks, with which a step takes at least a tenth of a second."""
    found = recorder(config, rank=rank)
    found.least_s = 0.1
    return found


def _launcher(environment: Mapping[str, str]) -> int | None:
    """Return the process of the Open MPI that has started this rank, maybe from an emulated host.

    There the parent of a rank is a daemon of its host.

    >>> _launcher({"PMIX_NAMESPACE": "prterun-here-0-4711@1"}), _launcher({})
    (4711, None)
    """
    words = re.fullmatch(r"prterun-.*-(\d+)@\d+", environment.get("PMIX_NAMESPACE", ""))
    return None if words is None else int(words[1])


class SampleRecorder(Hooks):
    """Hooks that write a line for each batch of training samples that the rank reads.

    Each step waits for `least_s` before it.
    """

    def __init__(self, path: Path, *, attempt: int) -> None:
        self.least_s = 0.0
        self._path = path
        self._attempt = attempt

    def after_read(self, plan: Plan, tokens: np.ndarray | None, *, rank: int, step: int) -> None:
        """Write down what was read, if anything."""
        time.sleep(self.least_s)
        if tokens is None:
            return
        line = _fed(plan, tokens, rank=rank, step=step, attempt=self._attempt)
        # Opened for each line: a rank that is killed leaves all earlier ones in the file.
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")


def read_fed(folder: Path) -> list[FedSamples]:
    """Return all records; the last line of a killed rank may be cut off."""
    lines = [line for path in folder.glob("fed-*.jsonl") for line in path.read_text().splitlines()]
    return [msgspec.json.decode(line, type=FedSamples) for line in lines if line.endswith("}}")]


def wrongly_fed(fed: Iterable[FedSamples], wanted: Sequence[Sequence[int]]) -> str:
    """Return which sample was lost, duplicated or replaced; empty if none was.

    `wanted` are the checksums of the rows of each step. Of several attempts at a step only the last
    counts: the results of the others are lost. The first and the last stage each read the whole
    batch, divided among replicas.

    >>> both = {"attempt": 1, "is_first_stage": True, "is_last_stage": True}
    >>> left, right = (FedSamples(step=0, rows=rows, **both) for rows in ({0: 7}, {1: 8}))
    >>> wrongly_fed([left, right], [[7, 8]])
    ''
    >>> wrongly_fed([FedSamples(step=0, rows={0: 7}, **both)], [[7, 8]])
    'step 1: the first stage was fed rows [0] of 2'
    """
    by_step: dict[int, list[FedSamples]] = {}
    for each in fed:
        by_step.setdefault(each.step, []).append(each)
    for step, rows in enumerate(wanted):
        last = max((each.attempt for each in by_step.get(step, [])), default=0)
        counted = [each for each in by_step.get(step, []) if each.attempt == last]
        ends = {
            "first": [each.rows for each in counted if each.is_first_stage],
            "last": [each.rows for each in counted if each.is_last_stage],
        }
        for name, read in ends.items():
            places = sorted(place for each in read for place in each)
            if places != list(range(len(rows))):
                return f"step {step + 1}: the {name} stage was fed rows {places} of {len(rows)}"
            if any(rows[place] != told for each in read for place, told in each.items()):
                return f"step {step + 1}: the {name} stage was fed other samples"
    return ""


def wanted_rows(
    tokens: np.ndarray, *, seed: int, batch: int, sequence: int, steps: int
) -> list[list[int]]:
    """Return the checksums of the samples of each step, drawn all at once."""
    return [
        [
            _checksum(row)
            for row in sample(tokens, seed=seed, step=s, batch=batch, sequence=sequence)
        ]
        for s in range(steps)
    ]


def _fed(plan: Plan, tokens: np.ndarray, *, rank: int, step: int, attempt: int) -> FedSamples:
    rows = tokens.reshape(-1, tokens.shape[-1])
    first = plan.rows(plan.replica(rank)).start
    stages = plan.stages(rank)
    return FedSamples(
        attempt=_MOST_RANKS * attempt - plan.num_ranks,  # each loss makes it larger
        step=step,
        is_first_stage=0 in stages,
        is_last_stage=plan.pipeline(rank).num_stages - 1 in stages,
        rows={first + place: _checksum(row) for place, row in enumerate(rows)},
    )


def _checksum(row: Any) -> int:
    # In one dtype, whatever the dataset has.
    return zlib.crc32(np.ascontiguousarray(row, np.int32).tobytes())
