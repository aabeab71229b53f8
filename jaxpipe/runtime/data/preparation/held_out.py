"""Choose the tokens that are held out for evaluation: the ends of equal spans of the stream.

::

    stream    ├──────────── span ───────────┼──────────── span ───────────┤
              │ train                  │eval│ train                  │eval│

The rule depends on the number of tokens alone: it applies to one document as well as to many, and
a stream sorted by topic is sampled in several places. Spans are few and long, because a window over
the seam between two of them joins unrelated text.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Integer

from jaxpipe.errors import DataError

_MOST_SPANS = 8
_LEAST_HELD_OUT = 4096  # tokens in each span, unless there is only one
_LEAST_DOCUMENTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutSplit:
    """Ranges of tokens, in order; every token is in exactly one of them."""

    train: tuple[range, ...]
    eval: tuple[range, ...]


def hold_out(
    num_tokens: int,
    *,
    eval_fraction: float,
    least: int = _LEAST_HELD_OUT,
    unit: str = "tokens",
) -> HeldOutSplit:
    """Return the ranges for training and evaluation, given the fraction to hold out.

    The number of held-out tokens is rounded down in each span, and is at least about `least` unless
    there is one span only. Of 0, nothing is held out.

    Raises:
        DataError: `eval_fraction` is not from 0 to below 1, or one side would be empty.

    >>> hold_out(10, eval_fraction=0.2)
    HeldOutSplit(train=(range(0, 8),), eval=(range(8, 10),))
    """
    if not 0 <= eval_fraction < 1:
        raise DataError(
            f"`eval_fraction` must be from 0 to below 1, not {eval_fraction}; 0.1 is usual"
        )
    if eval_fraction == 0 and num_tokens:
        return HeldOutSplit(train=(range(num_tokens),), eval=())
    num_held_out = int(num_tokens * eval_fraction)
    num_spans = min(_MOST_SPANS, max(1, num_held_out // least))
    edges = [num_tokens * span // num_spans for span in range(num_spans + 1)]
    train, held_out = [], []
    for start, stop in pairwise(edges):
        seam = stop - int((stop - start) * eval_fraction)
        train.append(range(start, seam))
        held_out.append(range(seam, stop))
    if not all(map(len, train)) or not all(map(len, held_out)):
        raise DataError(
            f"`source` must be long enough to hold out `eval_fraction` = {eval_fraction} of it; it"
            f" has {num_tokens} {unit}; name a longer text or a `validation`, raise the fraction,"
            " or set it to 0 and `train.eval_every` to 0"
        )
    return HeldOutSplit(train=tuple(train), eval=tuple(held_out))


def hold_out_documents(
    ends: Integer[np.ndarray, " documents"], *, eval_fraction: float
) -> HeldOutSplit:
    """Return the ranges of tokens where whole documents are held out, by their number.

    A prompt in one split must not have its completion in the other.

    Raises:
        DataError: as `hold_out`.

    >>> hold_out_documents(np.array([3, 4, 9, 12]), eval_fraction=0.25)
    HeldOutSplit(train=(range(0, 9),), eval=(range(9, 12),))
    """
    chosen = hold_out(
        len(ends), eval_fraction=eval_fraction, least=_LEAST_DOCUMENTS, unit="documents"
    )

    def tokens_of(documents: range) -> range:
        start = 0 if documents.start == 0 else int(ends[documents.start - 1])
        return range(start, int(ends[documents.stop - 1]))

    return HeldOutSplit(
        train=tuple(map(tokens_of, chosen.train)), eval=tuple(map(tokens_of, chosen.eval))
    )
