"""How an error is planted: a function of the runtime is replaced while ranks run."""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import jax

from jaxpipe.runtime.stage.compile_once import CompileOnce
from jaxpipe.runtime.stage.functions import StageFunctions

Plant = Callable[[], list[Any]]
"""Returns the patches that plant an error."""

UNLIKE, SHARDED, PACKED = "unlike", "sharded", "packed"
"""Two unlike replicas with dropout, masks and a tied embedding; three replicas that share the
optimizer out, with split backwards, a scaled loss and frozen parameters; packed documents and
adapters in interleaved stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """An error to plant into the ranks of a case; `compiled` are the functions that it changes."""

    name: str
    case: str
    plant: Plant
    compiled: tuple[str, ...] = ()


class PartlyRecompiled:
    """A compiler that takes what is compiled already, but for some functions of each stage."""

    def __init__(self, known: CompileOnce, names: Collection[str]) -> None:
        self._known = known
        self._names = names
        self._stages: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, given: StageFunctions, **options: Any) -> Any:
        """Return the calls of a stage."""
        compiled = self._known(given, **options)
        if not self._names:
            return compiled
        with self._lock:
            if given not in self._stages:
                again = {name: jax.jit(getattr(given, name)) for name in self._names}
                self._stages[given] = _Overridden(compiled, again)
        return self._stages[given]


@dataclass(frozen=True)
class _Overridden:
    calls: Any
    again: Mapping[str, Callable]

    def __getattr__(self, name: str) -> Any:
        return self.again[name] if name in self.again else getattr(self.calls, name)


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Let the runtime have an error."""
    with ExitStack() as stack:
        for each_patch in bug.plant():
            stack.enter_context(each_patch)
        yield


def around(owner: Any, name: str, wrong: Callable) -> list[Any]:
    """Return the patch of a function by `wrong(right, *arguments)`."""
    right = getattr(owner, name)

    def replaced(*arguments: Any, **options: Any) -> Any:
        return wrong(right, *arguments, **options)

    return [patch.object(owner, name, replaced)]


class RankMemory(threading.local):
    """What a planted error remembers; each rank is a thread."""

    def __init__(self) -> None:
        self.of: dict[Any, Any] = {}


def unlike(name: str, plant: Plant, *compiled: str) -> Bug:
    """Return an error for the two unlike replicas."""
    return Bug(name=name, case=UNLIKE, plant=plant, compiled=compiled)


def sharded(name: str, plant: Plant, *compiled: str) -> Bug:
    """Return an error for the three replicas that share the optimizer out."""
    return Bug(name=name, case=SHARDED, plant=plant, compiled=compiled)


def packed(name: str, plant: Plant, *compiled: str) -> Bug:
    """Return an error for packed documents and adapters."""
    return Bug(name=name, case=PACKED, plant=plant, compiled=compiled)
