"""Conversations about Python's manual, and the packed batches that a run reads of them."""

from collections.abc import Mapping
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from jaxtyping import Int64, Integer

from jaxpipe.runtime.data import mixture_of, open_dataset


def conversations(most_letters: int) -> list[dict[str, Any]]:
    """Return a question about each topic of Python's manual, and its first paragraphs."""
    talk = []
    for topic, text in sorted(topics.items()):
        _, _, rest = text.strip().partition("\n\n")  # behind the heading
        answer = rest[:most_letters].rpartition("\n\n")[0] or rest[:most_letters]
        turns = ("user", f"What does Python's manual say about {topic}?"), ("assistant", answer)
        talk.append({"messages": [{"role": role, "content": words} for role, words in turns]})
    return talk


def batches(
    dataset: Path, *, steps: int, batch: int, sequence: int
) -> Mapping[str, Int64[np.ndarray, "steps batch sequence"]]:
    """Return what the steps of a run with seed 0 read: inputs, targets, positions in documents."""
    mixture = mixture_of(
        [open_dataset(dataset)], [1], sequence=sequence, pack=True, evaluates=False
    )
    drawn = [mixture.train_samples(seed=0, step=step, batch=batch) for step in range(steps)]
    segments = [samples.segments for samples in drawn if samples.segments is not None]
    arrays = {
        "inputs": [samples.inputs for samples in drawn],
        "targets": [samples.targets for samples in drawn],
        "positions": list(map(positions, segments)),
    }
    return {name: np.array(rows, np.int64) for name, rows in arrays.items()}


def positions(segments: Integer[np.ndarray, "rows sequence"]) -> Int64[np.ndarray, "rows sequence"]:
    """Return the position of each token in its document.

    >>> positions(np.array([[0, 0, 1, 1, 1, 2]])).tolist()
    [[0, 1, 0, 1, 2, 0]]
    """
    numbers = np.arange(segments.shape[1])
    is_first = np.diff(segments, prepend=-1, axis=1) != 0
    return numbers - np.maximum.accumulate(np.where(is_first, numbers, 0), axis=1)
