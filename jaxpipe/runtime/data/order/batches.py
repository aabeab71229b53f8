"""Batches of token windows, determined by seed and step, and independent of the placement.

A row is `sequence + 1` consecutive tokens: its first `sequence` are inputs, its last `sequence`
the targets. The training tokens form a ring: the first one follows the last. Each epoch shifts the
ring by a different amount, and reads windows of it, one every `sequence` tokens, in a different
order::

    tokens    0 1 2 3 4 5 6 7 8 9      sequence 3, shift 2: 3 windows, in the order 1, 2, 0
    window 0      2 3 4[5]
    window 1            5 6 7[8]       the last target of a window is the next one's first input
    window 2  [1]             8 9 0

Within an epoch no token is a target twice, and fewer than `sequence` tokens are left out, different
ones in each epoch: all tokens are seen equally often. The cost of a row does not depend on the
dataset: there is no list of windows, and only the row is read.
"""

import numpy as np
from jaxtyping import Int32, Int64, Integer, UInt64

from jaxpipe.errors import DataError
from jaxpipe.runtime.data.order.permutation import mix, permute
from jaxpipe.runtime.storage.stored_array import StoredArray


def sample(
    tokens: Integer[np.ndarray, "tokens ..."] | StoredArray,
    *,
    seed: int,
    step: int,
    batch: int,
    sequence: int,
    rows: range | None = None,
) -> Int32[np.ndarray, "rows {sequence}+1"]:
    """Return the training batch of a step, or only some `rows` of it.

    The batch has `batch` rows; `rows` is a range of them, by default all. Each rank reads its own
    rows, and together they read what one rank would.

    Raises:
        DataError: there are fewer than `sequence + 1` tokens.

    >>> import numpy as np
    >>> tokens = np.arange(10, dtype=np.uint8)
    >>> sample(tokens, seed=0, step=0, batch=2, sequence=3)
    array([[6, 7, 8, 9],
           [3, 4, 5, 6]], dtype=int32)
    >>> sample(tokens, seed=0, step=0, batch=2, sequence=3, rows=range(1, 2))
    array([[3, 4, 5, 6]], dtype=int32)
    """
    serials = serial_numbers(step=step, batch=batch, rows=rows)
    check_length(tokens, sequence=sequence)
    return gather(
        tokens, window_starts(len(tokens), serials, seed=seed, sequence=sequence), sequence
    )


def serial_numbers(
    *, step: int, batch: int, rows: range | None = None
) -> Int64[np.ndarray, " rows"]:
    """Return the numbers of the samples of a step, or of some of its rows, counted over all steps.

    >>> serial_numbers(step=2, batch=4, rows=range(1, 3)).tolist()
    [9, 10]
    """
    rows = _check_rows(rows, batch=batch)
    return step * batch + np.arange(rows.start, rows.stop, dtype=np.int64)


def draw(
    count: int, serials: Int64[np.ndarray, " rows"], *, seed: int
) -> tuple[Int64[np.ndarray, " rows"], UInt64[np.ndarray, " rows"]]:
    """Return which of `count` things each sample is, each once in an epoch, and the epoch's key.

    `serials` are the numbers of samples, counted over all steps; each epoch has its own order.

    >>> draw(5, np.arange(5), seed=1)[0].tolist()
    [4, 3, 2, 0, 1]
    """
    epochs, indices = serials // count, serials % count
    # Seed and epoch are mixed separately: seed 1, epoch 0 must not draw what seed 0, epoch 1 draws.
    keys = mix(mix(np.full(len(serials), seed, np.uint64)) ^ epochs.astype(np.uint64))
    return permute(indices, size=count, keys=keys), keys


def window_starts(
    num_tokens: int, serials: Int64[np.ndarray, " rows"], *, seed: int, sequence: int
) -> Int64[np.ndarray, " rows"]:
    """Return the first tokens, on the ring, of the windows that these samples are."""
    windows, keys = draw(num_tokens // sequence, serials, seed=seed)
    shifts = (mix(keys) % np.uint64(num_tokens)).astype(np.int64)
    return (shifts + windows * sequence) % num_tokens


def gather(
    tokens: Integer[np.ndarray, " tokens"] | StoredArray,
    starts: Integer[np.ndarray, " rows"],
    sequence: int,
) -> Int32[np.ndarray, "rows {sequence}+1"]:
    """Return the windows of the ring of tokens that begin at `starts`."""
    ring: np.ndarray | StoredArray
    if isinstance(tokens, StoredArray):
        firsts = starts.tolist()
        over = max([0, *(first + sequence + 1 - len(tokens) for first in firsts)])
        tokens.fetch([(0, over), *((first, first + sequence + 1) for first in firsts)])
        ring = tokens
    else:
        ring = np.asarray(tokens)  # indexing a memmap takes twice as long
    out = np.empty((len(starts), sequence + 1), np.int32)
    for row, start in zip(out, starts.tolist(), strict=True):
        piece = ring[start : start + sequence + 1]
        row[: len(piece)] = piece
        # A window over the end of the ring continues at its start.
        row[len(piece) :] = ring[: sequence + 1 - len(piece)]
    return out


def _check_rows(rows: range | None, *, batch: int) -> range:
    rows = range(batch) if rows is None else rows
    assert rows.step == 1, rows
    assert 0 <= rows.start <= rows.stop <= batch, (rows, batch)
    return rows


def check_length(
    tokens: Integer[np.ndarray, "tokens ..."] | StoredArray,
    *,
    sequence: int,
    split: str = "a split",
    fix: str = "prepare a larger text with `jaxpipe data prepare`",
) -> None:
    """Check that a split has a window; else the error names it, and how to get more tokens.

    Raises:
        DataError: it has fewer than `sequence + 1` tokens, or labelled samples.
    """
    if tokens.ndim != 1:
        raise DataError("`data.folder` must hold text, not labelled samples; name another dataset")
    if len(tokens) < sequence + 1:
        raise DataError(
            f"`train.sequence` must be less than the {len(tokens)} tokens of {split}, not "
            f"{sequence}; lower it, or {fix}"
        )
