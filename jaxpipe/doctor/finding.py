"""What was found: how well something is, in words, and what to do about it."""

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """How well something is."""

    OK = "ok"
    SLOW = "slow"
    """It works, but slower than it could, or not for long."""
    BROKEN = "broken"
    """No run can do with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at; `fix` is empty where nothing is to be done."""

    about: str
    health: Health
    words: str
    fix: str = ""

    def __post_init__(self) -> None:
        assert (self.health is Health.OK) == (not self.fix), self
