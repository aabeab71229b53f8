"""Import packages as if another one were not installed."""

import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def absent(name: str) -> Iterator[None]:
    """Let imports of a module fail within a block, unless it has been imported before.

    For optional dependencies of others that take long to import and are of no use here.

    >>> import importlib
    >>> with absent("wave"):
    ...     importlib.import_module("wave")
    Traceback (most recent call last):
    ModuleNotFoundError: import of wave halted; None in sys.modules
    >>> importlib.import_module("wave").__name__
    'wave'
    """
    modules: MutableMapping[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
    is_known = name in modules
    modules.setdefault(name, None)
    try:
        yield
    finally:
        if not is_known:
            del modules[name]
