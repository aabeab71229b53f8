"""Reasons for a plan: the alternatives of each choice, with the seconds that they would cost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

_MOST = 6
"""Alternatives of a choice that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """The best simulated seconds of a step found with one alternative of a choice.

    One that does not fit into memory, or that the run could not execute, has none.
    """

    choice: str
    name: str
    step_s: float | None


def reason_lines(reasons: Sequence[Reason]) -> list[str]:
    r"""Return a line for each choice: its alternatives, the fastest first.

    >>> reasons = [
    ...     Reason(choice="schedule", name="1f1b", step_s=0.5),
    ...     Reason(choice="schedule", name="zb-h1", step_s=0.4),
    ...     Reason(choice="schedule", name="gpipe", step_s=None),
    ... ]
    >>> print("\n".join(reason_lines(reasons)))
    alternatives (simulated seconds of a step, the rest of the plan as it suits each)
      schedule      zb-h1 0.4, 1f1b 0.5 (1.25x); gpipe does not fit
    """
    # A choice with one alternative was none.
    lines = [line for choice in _by_choice(reasons) if len(choice) > 1 for line in _line(choice)]
    head = "alternatives (simulated seconds of a step, the rest of the plan as it suits each)"
    return [head, *lines] if lines else []


def _by_choice(reasons: Iterable[Reason]) -> list[list[Reason]]:
    key = attrgetter("choice")
    return [list(group) for _, group in groupby(sorted(reasons, key=key), key)]


def _line(reasons: Sequence[Reason]) -> list[str]:
    timed = sorted((reason.step_s, reason.name) for reason in reasons if reason.step_s is not None)
    lacking = [reason.name for reason in reasons if reason.step_s is None]
    best_s = timed[0][0] if timed else 0.0
    words = [
        f"{name} {step_s:.4g}" + (f" ({step_s / best_s:.2f}x)" if step_s > best_s else "")
        for step_s, name in timed[:_MOST]
    ]
    if len(timed) > _MOST:
        words.append(f"{len(timed) - _MOST} more")
    text = ", ".join(words)
    if lacking:
        verb = "does" if len(lacking) == 1 else "do"
        text += f"{'; ' if text else ''}{', '.join(lacking[:_MOST])} {verb} not fit"
    return [f"  {reasons[0].choice:<14}{text}"]
