"""Which tokens are held out for evaluation: the ends of equal spans of the stream.

::

    stream    ├──────────── span ───────────┼──────────── span ───────────┤
              │ train                  │eval│ train                  │eval│

The rule follows from the number of tokens alone, so it serves one document as well as many, and a
stream that is sorted by topic is held out in several places. Spans are few and long, because a
window over the seam of two of them joins text that does not belong together.
"""

from dataclasses import dataclass
from itertools import pairwise

from jaxpipe.errors import DataError

_MOST_SPANS = 8
_LEAST_HELD_OUT = 4096  # tokens in each span, unless there is but one


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutSplit:
    """Ranges of tokens, in order; no token is in two of them, and every token is in one."""

    train: tuple[range, ...]
    eval: tuple[range, ...]


def split(num_tokens: int, *, eval_fraction: float) -> HeldOutSplit:
    """Hold out `eval_fraction` of the tokens, rounded down in each span.

    Raises:
        DataError: `eval_fraction` is not between 0 and 1, or one side would be empty.

    >>> split(10, eval_fraction=0.2)
    HeldOutSplit(train=(range(0, 8),), eval=(range(8, 10),))
    """
    if not 0 < eval_fraction < 1:
        raise DataError(
            f"`eval_fraction` must be above 0 and below 1, not {eval_fraction}; 0.1 is usual"
        )
    num_held_out = int(num_tokens * eval_fraction)
    num_spans = min(_MOST_SPANS, max(1, num_held_out // _LEAST_HELD_OUT))
    edges = [num_tokens * span // num_spans for span in range(num_spans + 1)]
    train, held_out = [], []
    for start, stop in pairwise(edges):
        seam = stop - int((stop - start) * eval_fraction)
        train.append(range(start, seam))
        held_out.append(range(seam, stop))
    if not all(map(len, train)) or not all(map(len, held_out)):
        raise DataError(
            f"`source` must be long enough to hold out `eval_fraction` = {eval_fraction} of it; it"
            f" has {num_tokens} tokens; name a longer text"
        )
    return HeldOutSplit(train=tuple(train), eval=tuple(held_out))
