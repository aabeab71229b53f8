"""How many executables a process has compiled, and how many of them came from the compile cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import jax

_REQUEST = "/jax/compilation_cache/compile_requests_use_cache"
_HIT = "/jax/compilation_cache/cache_hits"


@dataclass(slots=True)
class CompileCount:
    """The number of compilations that the cache may answer, and of those that it did."""

    num_requests: int = 0
    num_hits: int = 0


@contextmanager
def counted_compiles() -> Iterator[CompileCount]:
    """Count the compilations in the body.

    >>> with counted_compiles() as count:
    ...     pass
    >>> count
    CompileCount(num_requests=0, num_hits=0)
    """
    count, changing = CompileCount(), Lock()

    def listen(event: str, **_: Any) -> None:
        with changing:  # functions compile in several threads
            count.num_requests += event == _REQUEST
            count.num_hits += event == _HIT

    jax.monitoring.register_event_listener(listen)
    try:
        yield count
    finally:
        jax.monitoring.unregister_event_listener(listen)
