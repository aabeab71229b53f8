"""Errors that all ranks find at the same time: one of them says so for all."""

from contextlib import suppress
from typing import NoReturn

import jax
import numpy as np

from jaxpipe.comm import BARRIER_TAG, Transport
from jaxpipe.errors import JaxpipeError, RunError

_NOTHING = jax.ShapeDtypeStruct((0,), np.dtype(np.uint8))
_SECONDS_TO_BE_ENDED = 10.0


def raise_in_unison(transport: Transport, error: JaxpipeError) -> NoReturn:
    """Raise the error at once on rank 0; the others first wait until that has ended them.

    Raises:
        JaxpipeError: the `error`.
    """
    if transport.rank != 0:
        with suppress(RunError):
            last_word = transport.receive(_NOTHING, source=0, tag=BARRIER_TAG)
            last_word.wait(timeout_s=_SECONDS_TO_BE_ENDED)
    raise error
