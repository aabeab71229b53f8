"""A collective as data: the steps of one rank on the parts of a flat array.

A rank has its own array, which it only reads, and a total. It sends parts of either, adds messages
to the total, takes messages into it unchanged, and settles a part whose sum is complete::

    rank 0   SEND [4:8) own to 1    ADD [0:4) own from 1    SETTLE [0:4)   SEND [0:4) to 1    TAKE
    rank 1   SEND [0:4) own to 0    ADD [4:8) own from 0    SETTLE [4:8)   SEND [4:8) to 0    TAKE

Steps of equal sender and receiver are in the same order on both sides.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

from jaxpipe.collective.shards import ElementRange

NOBODY = -1


class Act(Enum):
    """What a step does with its part."""

    SEND = auto()
    ADD = auto()
    TAKE = auto()
    SETTLE = auto()


class Step(NamedTuple):
    """One act on one part; with `is_own` it reads the rank's own array instead of the total.

    `is_far` steps are messages between the members of the whole tree, which may be far apart and
    may be compressed. `SETTLE` rounds a part as its messages will: all ranks get the same bits.
    """

    act: Act
    part: ElementRange
    peer: int = NOBODY
    is_own: bool = False
    is_far: bool = False

    def moved(self, offset: int) -> "Step":
        """Return the same step on a part that starts `offset` elements later."""
        part = ElementRange(self.part.start + offset, self.part.stop + offset)
        return Step(self.act, part, self.peer, self.is_own, self.is_far)


Phases = Sequence[Sequence[Step]]
"""The steps of a rank on one chunk; each phase first receives, then sends."""

PhasesOf: TypeAlias = Callable[[int, ElementRange], Phases]
"""The steps of each rank on one chunk, by rank and chunk."""


def moved(phases: Phases, offset: int) -> Phases:
    """Return the same steps on parts that start `offset` elements later."""
    return [[step.moved(offset) for step in phase] for phase in phases]


def weave(chunks: Sequence[Phases]) -> Iterator[Step]:
    """Return the steps of all chunks: each phase of every chunk before the next phase of any.

    So a rank sends the parts of later chunks while the earlier ones are under way.

    >>> def phases_of(chunk):
    ...     return [Step(Act.SEND, chunk, 1)], [Step(Act.TAKE, chunk, 1)]
    >>> for step in weave([phases_of(chunk) for chunk in ElementRange(0, 5).cut(2)]):
    ...     print(step.act.name, tuple(step.part))
    SEND (0, 2)
    SEND (2, 5)
    TAKE (0, 2)
    TAKE (2, 5)
    """
    for phases in zip_longest(*chunks, fillvalue=()):
        for phase in phases:
            yield from phase


def reduce_and_broadcast(steps: Sequence[Step]) -> tuple[Sequence[Step], Sequence[Step]]:
    """Split an all-reduce into its reduction and its broadcast, from the first `TAKE` of a part on.

    Both keep their order and can run side by side, so that the first chunks of a tree come down
    while later ones go up. No step has to wait for one of the other list, since what a rank takes
    contains what it has sent. Where one peer is sent to or received from in both lists, messages
    would overtake each other, and where the first one receives nothing, it waits for nothing: the
    second is empty then.

    >>> chunks = ElementRange(0, 8).cut(2)
    >>> up = [Step(*act) for chunk in chunks for act in ((Act.ADD, chunk, 2), (Act.SEND, chunk, 0))]
    >>> down = [Step(Act.TAKE, chunk, 0) for chunk in chunks]
    >>> reduce_and_broadcast([*up, *down]) == (up, down)
    True
    """
    reduction: list[Step] = []
    broadcast: list[Step] = []
    taken: set[ElementRange] = set()
    for step in steps:
        if step.act is Act.TAKE:
            taken.add(step.part)
        (broadcast if step.part in taken else reduction).append(step)
    channels = _channels(reduction)
    receives = any(is_receive for _, is_receive in channels)
    is_parallel = receives and not channels & _channels(broadcast)
    return (reduction, broadcast) if is_parallel else (steps, ())


def _channels(steps: Iterable[Step]) -> set[tuple[int, bool]]:
    """Return the peers of the steps, each with whether it is received from."""
    return {(step.peer, step.act is not Act.SEND) for step in steps if step.peer != NOBODY}
