"""An all-reduce as data: the steps of one rank on the parts of a flat array.

A rank holds what it brought, its own, and a total. It sends parts of either, adds what it receives,
takes what it receives as it is, and settles a part whose sum is complete::

    rank 0   SEND [4:8) own to 1    ADD [0:4) own from 1    SETTLE [0:4)   SEND [0:4) to 1    TAKE
    rank 1   SEND [0:4) own to 0    ADD [4:8) own from 0    SETTLE [4:8)   SEND [4:8) to 0    TAKE

Steps of equal sender and receiver stand in the same order on both sides.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import NamedTuple

from jaxpipe.collective.shards import Part

NOBODY = -1


class Act(Enum):
    """What a step does with its part."""

    SEND = auto()
    ADD = auto()
    TAKE = auto()
    SETTLE = auto()


class Step(NamedTuple):
    """One act on one part; `is_own`: it reads what the rank brought, which no step has changed.

    `is_far` steps join the members of the whole tree, which may be far apart; a codec may shorten
    what they move. What `SETTLE` leaves is what the others get, whatever the wire rounds.
    """

    act: Act
    part: Part
    peer: int = NOBODY
    is_own: bool = False
    is_far: bool = False

    def moved(self, offset: int) -> "Step":
        """Return the same step on a part that starts `offset` elements later."""
        part = Part(self.part.start + offset, self.part.stop + offset)
        return Step(self.act, part, self.peer, self.is_own, self.is_far)


Phases = Sequence[Sequence[Step]]
"""The steps of a rank on one chunk; each phase first waits for others, then sends."""


def weave(phases_of: Callable[[Part], Phases], chunks: Sequence[Part]) -> Iterator[Step]:
    """Return the steps of all chunks: each phase of all of them before the next phase of any.

    So a rank sends the parts of later chunks while the earlier ones are under way.

    >>> def phases_of(chunk):
    ...     return [Step(Act.SEND, chunk, 1)], [Step(Act.TAKE, chunk, 1)]
    >>> for step in weave(phases_of, Part(0, 5).cut(2)):
    ...     print(step.act.name, tuple(step.part))
    SEND (0, 2)
    SEND (2, 5)
    TAKE (0, 2)
    TAKE (2, 5)
    """
    by_size = {size: phases_of(Part(0, size)) for size in {chunk.size for chunk in chunks}}
    for phase in range(max((len(phases) for phases in by_size.values()), default=0)):
        for chunk in chunks:
            for step in by_size[chunk.size][phase]:
                yield step.moved(chunk.start)
