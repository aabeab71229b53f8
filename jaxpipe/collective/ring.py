"""Around a ring: each rank sends to the next one, a share at a time.

In p - 1 rounds each share collects the sum, in p - 1 more it goes round. Each rank sends
2 (p - 1) / p of the array in 2 (p - 1) messages, and uses one link each way.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
JPDC 69, 2009.
"""

from collections.abc import Sequence

from jaxpipe.collective.shards import Part
from jaxpipe.collective.step import Act, Phases, Step


def ring_phases(order: Sequence[int], rank: int, chunk: Part) -> Phases:
    """Return the steps of `rank` on one chunk.

    >>> for phase in ring_phases((0, 1), 0, Part(0, 8)):
    ...     print([(step.act.name, tuple(step.part)) for step in phase])
    [('SEND', (0, 4))]
    [('ADD', (4, 8)), ('SETTLE', (4, 8)), ('SEND', (4, 8))]
    [('TAKE', (0, 4))]
    """
    size, mine = len(order), order.index(rank)
    if size == 1:
        return ([Step(Act.SETTLE, chunk, is_own=True)],)
    shares = chunk.cut(size)
    after, before = order[(mine + 1) % size], order[mine - 1]
    phases = [[Step(Act.SEND, shares[mine], after, is_own=True)]]
    for turn in range(1, 2 * size - 1):
        share = shares[(mine - turn) % size]
        phase = [Step(Act.ADD, share, before, is_own=True)]
        if turn == size - 1:
            phase.append(Step(Act.SETTLE, share))
        elif turn >= size:
            phase = [Step(Act.TAKE, share, before)]
        if turn < 2 * size - 2:
            phase.append(Step(Act.SEND, share, after))
        phases.append(phase)
    return [[step for step in phase if step.part.size] for phase in phases]
