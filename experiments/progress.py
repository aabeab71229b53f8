"""How far an experiment is: one progress line, with an estimate, for whatever it goes through."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from jaxpipe.run.terminal.progress import Progress, showing_progress

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def counted(items: Sequence[_Item], what: str) -> Iterator[_Item]:
    """Yield items, and show how many of them are done.

    >>> list(counted(["gpipe", "1f1b"], "cases"))
    ['gpipe', '1f1b']
    """
    return counted_results(items, what, total=len(items))


def counted_results(results: Iterable[_Result], what: str, *, total: int) -> Iterator[_Result]:
    """Yield results as they come, such as those of an executor, and show how many have come."""
    with showing_progress() as display:
        for done, result in enumerate(results):
            display.update(Progress(what=what, done=done, total=total))
            yield result
