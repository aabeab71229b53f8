"""What all pairs of ranks have sent in some steps, as rank 0 measured it."""

from dataclasses import dataclass

from jaxpipe.trace import PairUse


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPairs:
    """The use of all pairs of ranks from `first_step` to `last_step`, which count from 1."""

    first_step: int
    last_step: int
    pairs: tuple[PairUse, ...]
