"""Which samples ranks were fed: written down by each rank, and accounted for step by step.

A rank writes a line for each step to a file of its own, `fed-PROCESS.jsonl` beside the
configuration: which stages it holds, and a checksum for each row of the batch that it reads.
"""

import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from jaxpipe.runtime.data import sample
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.step.batch import StepBatch

_MOST_RANKS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FedSamples:
    """What one rank was fed in one step, which counts from 0, in one attempt of the run.

    An attempt has a number that is larger than those before, also where a job goes on without ranks
    that it has lost. `rows` are checksums of its samples, by their place in the batch of all
    replicas.
    """

    attempt: int
    step: int
    is_first_stage: bool
    is_last_stage: bool
    rows: Mapping[int, int]


def record(config: Path, *, attempt: int) -> None:
    """Make this process write down what it is fed."""
    import jaxpipe.runtime.step.worker as worker_module

    train_step_batch = worker_module.train_step_batch
    path = config.with_name(f"fed-{os.getpid()}.jsonl")

    @wraps(train_step_batch)
    def feed_and_tell(job: Job, *, rank: int, step: int) -> StepBatch:
        feed = train_step_batch(job, rank=rank, step=step)
        if feed.tokens is not None:
            with path.open("ab") as file:
                line = _fed(job, feed, rank=rank, attempt=attempt)
                file.write(msgspec.json.encode(line) + b"\n")
        return feed

    worker_module.train_step_batch = feed_and_tell


def read_fed(folder: Path) -> list[FedSamples]:
    """Return all that was written down; of a rank that was killed, the last line may be cut."""
    lines = [line for path in folder.glob("fed-*.jsonl") for line in path.read_text().splitlines()]
    return [msgspec.json.decode(line, type=FedSamples) for line in lines if line.endswith("}}")]


def wrongly_fed(fed: Iterable[FedSamples], wanted: Sequence[Sequence[int]]) -> str:
    """Return which sample was lost, doubled or another one, and nothing if none was.

    `wanted` are the checksums of the rows of each step. Of attempts that did the same step, only
    the last one counts: what the others did with it went with them. The first stage and the last
    each read the whole batch, shared out among replicas.

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


def _fed(job: Job, feed: StepBatch, *, rank: int, attempt: int) -> FedSamples:
    assert feed.tokens is not None
    rows = np.asarray(feed.tokens)
    rows = rows.reshape(-1, rows.shape[-1])
    first = feed.first_microbatch * job.plan.microbatch
    stages = job.plan.stages(rank)
    return FedSamples(
        attempt=_MOST_RANKS * attempt - job.plan.num_ranks,  # each loss makes it larger
        step=feed.step,
        is_first_stage=0 in stages,
        is_last_stage=job.plan.num_stages - 1 in stages,
        rows={first + place: _checksum(row) for place, row in enumerate(rows)},
    )


def _checksum(row: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(row, np.int32).tobytes())
