"""What a codec has left out of scaled gradients: it has their scale, and skipped steps add none.

A codec with error feedback adds what it has left out to the gradients of the next step
(`ReduceWorker.errors`), so both have one scale. A step that overflowed has given away what was left
out before, and has left out parts of gradients that nobody takes: so errors are copied before a
step, and it is the copies that stay if it is skipped.
"""

import numpy as np

from jaxpipe.comm import Reducer


def copied_errors(reducer: Reducer) -> dict[int, np.ndarray]:
    """Return copies of what has been left out so far, by the tag of the sum."""
    return {tag: errors.copy() for tag, errors in reducer.errors.items()}


def settle_errors(
    reducer: Reducer, before: dict[int, np.ndarray], *, is_taken: bool, ratio: float
) -> None:
    """Let errors be those of the steps taken, times `ratio`: the next scale over that of the step.

    `before` are copies from before the step, which are taken over; nothing may be under way.
    """
    if not is_taken:
        reducer.errors = before
    if ratio != 1:
        for errors in reducer.errors.values():
            np.multiply(errors, np.float32(ratio), out=errors)
