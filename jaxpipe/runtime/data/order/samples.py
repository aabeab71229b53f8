"""The samples of a split of one dataset: windows of tokens, or rows with labels."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32, Int64, Integer, UInt

from jaxpipe.runtime.data.order.batches import check_length, draw, gather, window_starts
from jaxpipe.runtime.storage.stored_array import StoredArray

IGNORED = -100
"""The target of a token that does not count: it adds nothing to the loss."""

Numbers = Int64[np.ndarray, " rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Some rows of a batch.

    `rows` are windows of tokens, inputs and, shifted by one, targets; or, with `labels` as targets,
    inputs of any kind. `segments` number the documents in each row of packed samples.
    """

    rows: Integer[np.ndarray, "rows ..."]
    labels: Int32[np.ndarray, "rows ..."] | None = None
    segments: Int32[np.ndarray, "rows sequence"] | None = None

    @property
    def inputs(self) -> Integer[np.ndarray, "rows ..."]:
        """What the first stage reads."""
        return self.rows[:, :-1] if self.labels is None else self.rows

    @property
    def targets(self) -> Int32[np.ndarray, "rows ..."]:
        """What the last stage reads."""
        return self.rows[:, 1:] if self.labels is None else self.labels


@runtime_checkable
class Split(Protocol):
    """The samples of one split."""

    @property
    def num_samples(self) -> int:
        """The number of different samples that `read` returns."""
        ...

    def draw(self, serials: Numbers, /, *, seed: int) -> Samples:
        """Return samples by their numbers, counted over all steps: each is in each epoch once."""
        ...

    def read(self, numbers: Numbers, /) -> Samples:
        """Return samples by their numbers in the split."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Windows of `sequence` tokens, and the target of the last one; `order.batches` draws them.

    `counted` is 1 for each token that is a target; None where all are.

    Raises:
        DataError: there is none.
    """

    tokens: UInt[np.ndarray, " tokens"] | StoredArray
    sequence: int
    counted: UInt[np.ndarray, " tokens"] | StoredArray | None = None

    def __post_init__(self) -> None:
        check_length(self.tokens, sequence=self.sequence)

    @property
    def num_samples(self) -> int:
        """The number of windows whose targets are different tokens."""
        return (len(self.tokens) - 1) // self.sequence

    def draw(self, serials: Numbers, *, seed: int) -> Samples:
        """Return windows of the ring of tokens, which each epoch shifts."""
        count, sequence = len(self.tokens), self.sequence
        return self._at(window_starts(count, serials, seed=seed, sequence=sequence))

    def read(self, numbers: Numbers) -> Samples:
        """Return windows in the order of the tokens."""
        return self._at(numbers * self.sequence)

    def _at(self, starts: Numbers) -> Samples:
        rows = gather(self.tokens, starts, self.sequence)
        if self.counted is None:
            return Samples(rows=rows)
        is_target = gather(self.counted, starts, self.sequence)[:, 1:] == 1
        return Samples(rows=rows[:, :-1], labels=np.where(is_target, rows[:, 1:], IGNORED))


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRows:
    """Samples with a label each; `dtype` is that of the inputs of the model."""

    inputs: UInt[np.ndarray, "samples ..."] | StoredArray
    labels: UInt[np.ndarray, " samples"]
    dtype: str

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return len(self.labels)

    def draw(self, serials: Numbers, *, seed: int) -> Samples:
        """Return samples in the order of their epoch."""
        return self.read(draw(self.num_samples, serials, seed=seed)[0])

    def read(self, numbers: Numbers) -> Samples:
        """Return samples by their numbers."""
        # A list: a memmap is copied only where rows are chosen one by one.
        chosen = numbers.tolist()
        inputs, labels = (np.asarray(each[chosen]) for each in (self.inputs, self.labels))
        return Samples(rows=inputs.astype(self.dtype), labels=labels.astype(np.int32))
