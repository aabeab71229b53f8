"""From what a trial does to what becomes of it: an error that jaxpipe raises is a trial failed."""

from collections.abc import Callable

from jaxpipe.chaos.trial import Trial
from jaxpipe.errors import JaxpipeError, RunError


def tried(name: str, work: Callable[[dict[str, float]], object]) -> Trial:
    """Do a trial, which writes down its figures, and raises if it does not come out as it must.

    >>> def work(figures):
    ...     figures["gone_s"] = 7.0
    ...     expect(figures["gone_s"] < 1, "it takes too long")
    >>> tried("a", work)
    Trial(name='a', passed=False, why='it takes too long', figures={'gone_s': 7.0})
    """
    figures: dict[str, float] = {}
    try:
        work(figures)
    except JaxpipeError as error:
        why = " ".join(str(error).split())
        return Trial(name=name, passed=False, why=why, figures=figures)
    return Trial(name=name, passed=True, figures=figures)


def expect(is_so: bool, otherwise: str) -> None:
    """Go on if it is as it must be.

    Raises:
        RunError: it is not; `otherwise` says so.
    """
    if not is_so:
        raise RunError(otherwise)
