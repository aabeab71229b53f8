"""The result of one check: its severity, a message, and the fix."""

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    SLOW = "slow"
    """It works, but slowly, or not for long."""
    BROKEN = "broken"
    """No run can work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check; `fix` is empty if and only if all is well."""

    about: str
    health: Health
    message: str
    fix: str = ""

    def __post_init__(self) -> None:
        assert (self.health is Health.OK) == (not self.fix), self
