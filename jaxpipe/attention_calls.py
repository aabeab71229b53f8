"""Custom calls of XLA for attention, offered by who compiles to the models that are traced.

::

    jaxpipe.runtime.stage    compiles for one CPU: with offered(calls), it traces the stage
    jaxpipe.models           takes them for the attention that they compute, or products

A program for other devices, and one that a search reads, has no such calls: nobody offers them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class AttentionCalls(NamedTuple):
    """The names of the calls, as they are registered in this process."""

    forward: str
    backward: str


_OFFERED: ContextVar[AttentionCalls | None] = ContextVar("attention_calls", default=None)


@contextmanager
def offered(calls: AttentionCalls | None) -> Iterator[None]:
    """Offer calls, or none, to what this thread traces meanwhile."""
    token = _OFFERED.set(calls)
    try:
        yield
    finally:
        _OFFERED.reset(token)


def offered_calls() -> AttentionCalls | None:
    """Return the calls on offer; who keeps traced functions has to tell them apart by these."""
    return _OFFERED.get()
