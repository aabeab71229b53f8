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
from jaxpipe.runtime.data.permutation import mix, permute


def sample(
    tokens: Integer[np.ndarray, "tokens ..."],
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
    rows = _check_rows(rows, batch=batch)
    _check_length(tokens, sequence=sequence)
    windows, keys = _drawn(len(tokens) // sequence, seed=seed, step=step, batch=batch, rows=rows)
    shifts = (mix(keys) % np.uint64(len(tokens))).astype(np.int64)
    return _gather(tokens, (shifts + windows * sequence) % len(tokens), sequence=sequence)


def sample_numbers(
    num_samples: int, *, seed: int, step: int, batch: int, rows: range | None = None
) -> Int64[np.ndarray, " rows"]:
    """Return the numbers of the labelled samples in the training batch of a step, or in some rows.

    Each epoch has every sample once, in an order of its own.

    >>> sample_numbers(5, seed=1, step=0, batch=5).tolist()
    [4, 3, 2, 0, 1]
    >>> sample_numbers(5, seed=1, step=0, batch=5, rows=range(3, 5)).tolist()
    [0, 1]
    """
    rows = _check_rows(rows, batch=batch)
    return _drawn(num_samples, seed=seed, step=step, batch=batch, rows=rows)[0]


def eval_numbers(*, index: int, batch: int, rows: range | None = None) -> range:
    """Return the numbers of the labelled samples of an evaluation batch, or of some of its rows.

    >>> eval_numbers(index=1, batch=4, rows=range(1, 3))
    range(5, 7)
    """
    rows = _check_rows(rows, batch=batch)
    return range(index * batch + rows.start, index * batch + rows.stop)


def num_eval_batches(tokens: Integer[np.ndarray, " tokens"], *, batch: int, sequence: int) -> int:
    """Return the number of full batches of windows; a last, partial one is left out.

    Raises:
        DataError: there is none.

    >>> import numpy as np
    >>> num_eval_batches(np.arange(14), batch=2, sequence=3)
    2
    """
    _check_length(tokens, sequence=sequence)
    num_windows = (len(tokens) - 1) // sequence
    if num_windows < batch:
        raise DataError(
            f"`batch` must be at most the {num_windows} windows of {sequence} tokens in the eval"
            f" split, not {batch}; lower it, or prepare the data with a larger `eval_fraction`"
        )
    return num_windows // batch


def eval_batch(
    tokens: Integer[np.ndarray, " tokens"],
    *,
    index: int,
    batch: int,
    sequence: int,
    rows: range | None = None,
) -> Int32[np.ndarray, "rows {sequence}+1"]:
    """Return one evaluation batch, or only some `rows` of it: the same windows in each run.

    No token is a target twice. `index` lies in `range(num_eval_batches(...))`.

    Raises:
        DataError: there is no full batch.

    >>> import numpy as np
    >>> eval_batch(np.arange(14), index=1, batch=2, sequence=3)
    array([[ 6,  7,  8,  9],
           [ 9, 10, 11, 12]], dtype=int32)
    """
    num_batches = num_eval_batches(tokens, batch=batch, sequence=sequence)
    assert 0 <= index < num_batches, (index, num_batches)
    rows = _check_rows(rows, batch=batch)
    windows = index * batch + np.arange(rows.start, rows.stop, dtype=np.int64)
    return _gather(tokens, windows * sequence, sequence=sequence)


def _drawn(
    count: int, *, seed: int, step: int, batch: int, rows: range
) -> tuple[Int64[np.ndarray, " rows"], UInt64[np.ndarray, " rows"]]:
    """Return which of `count` things each row is, each once in an epoch, and the epoch's key."""
    serial = step * batch + np.arange(rows.start, rows.stop, dtype=np.int64)
    epochs, indices = serial // count, serial % count
    # Seed and epoch are mixed separately: seed 1, epoch 0 must not draw what seed 0, epoch 1 draws.
    keys = mix(mix(np.full(len(rows), seed, np.uint64)) ^ epochs.astype(np.uint64))
    return permute(indices, size=count, keys=keys), keys


def _gather(
    tokens: Integer[np.ndarray, " tokens"], starts: Integer[np.ndarray, " rows"], *, sequence: int
) -> Int32[np.ndarray, "rows {sequence}+1"]:
    ring: np.ndarray = np.asarray(tokens)  # indexing a memmap takes twice as long
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


def _check_length(tokens: Integer[np.ndarray, "tokens ..."], *, sequence: int) -> None:
    if tokens.ndim != 1:
        raise DataError("`folder` must hold text, not labelled samples; name another dataset")
    if len(tokens) < sequence + 1:
        raise DataError(
            f"`sequence` must be less than the {len(tokens)} tokens of a split, not {sequence};"
            " lower it, or prepare a larger text with `jaxpipe data prepare`"
        )
