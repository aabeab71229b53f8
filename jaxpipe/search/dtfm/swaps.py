"""All swaps of a device of one stage with a device elsewhere, evaluated at once.

A swap changes the sync of two groups and at most four hops; the rest of the cost stays the same.
"""

from dataclasses import dataclass

import numpy as np

from jaxpipe.search.dtfm.matching import LARGEST_SUBSET_SIZE, bottleneck_values
from jaxpipe.search.dtfm.network import Network

NOWHERE = -1
"""The group of a device that is left out."""


@dataclass(slots=True, kw_only=True, eq=False)
class Table:
    """The devices of each stage, with the parts of the cost; `spread` breaks ties of the total.

    `stages` is stages x members; `syncs` what each member spends on its group, in the same shape;
    `hops[s]` the bottleneck from stage `s` to the next, in seconds; `group[d]` and `slot[d]` say
    where device `d` is in `stages`.
    """

    stages: np.ndarray
    syncs: np.ndarray
    hops: np.ndarray
    group: np.ndarray
    slot: np.ndarray

    @property
    def slowest_syncs(self) -> np.ndarray:
        """The sync seconds of the slowest member of each group."""
        return self.syncs.max(axis=1)

    @property
    def total(self) -> float:
        """The cost in seconds."""
        return float(self.slowest_syncs.max() + 2 * self.hops.sum())

    @property
    def spread(self) -> float:
        """The sum of the slowest members' sync seconds: a smaller one makes room for swaps."""
        return float(self.slowest_syncs.sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Swaps:
    """Many swaps: `leaving` goes from `slot` of the stage to where `entering` was."""

    stage: int
    slot: np.ndarray
    leaving: np.ndarray
    entering: np.ndarray

    def __len__(self) -> int:
        return len(self.slot)

    def __getitem__(self, chosen: np.ndarray) -> "Swaps":
        return Swaps(
            stage=self.stage,
            slot=self.slot[chosen],
            leaving=self.leaving[chosen],
            entering=self.entering[chosen],
        )


def tabulate(network: Network, stages: np.ndarray) -> Table:
    """Return the table of these stages, stages x members; other devices are left out."""
    num_stages, size = stages.shape
    group = np.full(len(network), NOWHERE)
    slot = np.zeros(len(network), dtype=int)
    group[stages] = np.arange(num_stages)[:, None]
    slot[stages] = np.arange(size)
    syncs = network.weights.sync[stages[:, :, None], stages[:, None, :]].sum(axis=2)
    hops = hop_seconds(network, stages[:-1], stages[1:])
    return Table(stages=stages.copy(), syncs=syncs, hops=hops, group=group, slot=slot)


def hop_seconds(network: Network, sources: np.ndarray, destinations: np.ndarray) -> np.ndarray:
    """Return the bottleneck between each group and its successor, both batch x members.

    Large groups are taken as they are aligned, slot to slot: an upper bound.
    """
    if sources.shape[1] > LARGEST_SUBSET_SIZE:
        return network.seconds[network.ranks[sources, destinations].max(axis=1, initial=0)]
    pairs = network.ranks[sources[:, :, None], destinations[:, None, :]]
    return network.seconds[bottleneck_values(pairs)]


def swaps_of(network: Network, table: Table, *, stage: int) -> Swaps:
    """Return the swaps of a stage's devices with all others that may make a difference.

    Of devices that are interchangeable one is enough, unless groups are aligned slot by slot; then
    only slots are considered at which a swap can lower the total.
    """
    members = table.stages[stage]
    others = np.flatnonzero(table.group != stage)
    if len(members) > LARGEST_SUBSET_SIZE:
        slots = _critical_slots(network, table, stage)
    else:
        slots = np.unique(network.twins[members], return_index=True)[1]
        # One number for a pair: `group` is -1 .. n - 1, so steps of n + 1 keep twins apart.
        kinds = network.twins[others] * (len(table.stages) + 1) + table.group[others]
        others = others[np.unique(kinds, return_index=True)[1]]
    slot, entering = np.repeat(slots, len(others)), np.tile(others, len(slots))
    differ = network.twins[members[slot]] != network.twins[entering]
    return Swaps(
        stage=stage,
        slot=slot[differ],
        leaving=members[slot[differ]],
        entering=entering[differ],
    )


def _critical_slots(network: Network, table: Table, stage: int) -> np.ndarray:
    """Return the slots of the slowest group, or those of the slowest hops to and from another."""
    stages = table.stages
    if table.slowest_syncs.argmax() == stage:
        return np.arange(stages.shape[1])
    near = [
        network.ranks[stages[first], stages[first + 1]].argmax()
        for first in (stage - 1, stage)
        if 0 <= first < len(table.hops)
    ]
    return np.unique(near).astype(int)


def value(network: Network, table: Table, swaps: Swaps) -> tuple[np.ndarray, np.ndarray]:
    """Return the total and the spread after each swap; infinity where the total would not fall."""
    total, spread = np.full((2, len(swaps)), np.inf)
    slowest, new_spread = _sync_after(network, table, swaps)
    touched = _touched_hops(table, swaps)
    # Index -1, for no hop, reads the appended 0.
    kept = table.hops.sum() - np.append(table.hops, 0.0)[touched].sum(axis=1)
    # Only swaps whose lower bound is not above the present total need the slow matchings.
    open_ = np.flatnonzero(slowest + 2 * kept <= table.total)
    hops = _hops_after(network, table, swaps[open_], touched[open_])
    total[open_] = slowest[open_] + 2 * (kept[open_] + hops)
    spread[open_] = new_spread[open_]
    return total, spread


def apply(network: Network, table: Table, swaps: Swaps, index: int) -> None:
    """Make one of the swaps, in place."""
    leaving, entering = int(swaps.leaving[index]), int(swaps.entering[index])
    places = [(int(table.group[d]), int(table.slot[d])) for d in (leaving, entering)]
    for device, (group, slot) in zip((entering, leaving), places, strict=True):
        table.group[device], table.slot[device] = group, slot
        if group != NOWHERE:
            table.stages[group, slot] = device
    for group, _ in places:
        if group != NOWHERE:
            members = table.stages[group]
            table.syncs[group] = network.weights.sync[np.ix_(members, members)].sum(axis=1)
    near = [group - back for group, _ in places for back in (0, 1) if group != NOWHERE]
    hops = np.unique([hop for hop in near if 0 <= hop < len(table.hops)]).astype(int)
    table.hops[hops] = hop_seconds(network, table.stages[hops], table.stages[hops + 1])


def _sync_after(network: Network, table: Table, swaps: Swaps) -> tuple[np.ndarray, np.ndarray]:
    """Return the sync seconds of the slowest member after each swap, and the spread."""
    here = np.full(len(swaps), swaps.stage)
    there, slot = table.group[swaps.entering], table.slot[swaps.entering]
    mine = _group_after(network, table, here, swaps.slot, swaps.leaving, swaps.entering)
    theirs = _group_after(network, table, there, slot, swaps.entering, swaps.leaving)
    theirs = np.where(there == NOWHERE, 0.0, theirs)  # there, -1 has read the last group
    slowest = table.slowest_syncs
    lost = slowest[swaps.stage] + np.where(there == NOWHERE, 0.0, slowest[there])
    return (
        np.maximum(np.maximum(mine, theirs), _slowest_without(slowest, swaps.stage)[there]),
        slowest.sum() - lost + mine + theirs,
    )


def _slowest_without(slowest: np.ndarray, stage: int) -> np.ndarray:
    """Return the slowest group but for `stage` and each group; the last entry only for `stage`."""
    rest = np.delete(slowest, stage)
    # The zeros: there may be fewer than two other groups.
    top, second = np.sort(np.concatenate((rest, [0.0, 0.0])))[:-3:-1]
    without = np.where(slowest == top, np.where((rest == top).sum() > 1, top, second), top)
    return np.append(without, top)


def _group_after(
    network: Network,
    table: Table,
    group: np.ndarray,
    slot: np.ndarray,
    leaving: np.ndarray,
    entering: np.ndarray,
) -> np.ndarray:
    """Return the sync seconds of each group's slowest member with `entering` for `leaving`."""
    sync, members = network.weights.sync, table.stages[group]
    spent = sync[entering[:, None], members]
    after = table.syncs[group] - sync[members, leaving[:, None]] + sync[members, entering[:, None]]
    # `members` still has `leaving`.
    after[np.arange(len(group)), slot] = spent.sum(axis=1) - sync[entering, leaving]
    return after.max(axis=1)


def _touched_hops(table: Table, swaps: Swaps) -> np.ndarray:
    """Return the hops that each swap changes, swaps x 4, with -1 for none."""
    here = np.full(len(swaps), swaps.stage)
    there = table.group[swaps.entering]
    touched = np.stack((here - 1, here, there - 1, there), axis=1)
    touched[there == NOWHERE, 2:] = -1
    touched[touched >= len(table.hops)] = -1
    # Neighbouring stages share a hop, which must not count twice.
    touched[there == here + 1, 2] = -1
    touched[there == here - 1, 3] = -1
    return touched


def _hops_after(network: Network, table: Table, swaps: Swaps, touched: np.ndarray) -> np.ndarray:
    """Return the sum of the touched hops after each swap."""
    which, column = np.nonzero(touched >= 0)
    first = touched[which, column]
    chosen = swaps[which]
    sources = _members_after(table, chosen, first)
    destinations = _members_after(table, chosen, first + 1)
    seconds = np.zeros(touched.shape)
    seconds[which, column] = hop_seconds(network, sources, destinations)
    return seconds.sum(axis=1)


def _members_after(table: Table, swaps: Swaps, stage: np.ndarray) -> np.ndarray:
    """Return the members of `stage[i]` after swap `i`, swaps x members."""
    members = table.stages[stage]  # a copy, as indices are an array
    here = np.flatnonzero(stage == swaps.stage)
    members[here, swaps.slot[here]] = swaps.entering[here]
    there = np.flatnonzero(stage == table.group[swaps.entering])
    members[there, table.slot[swaps.entering[there]]] = swaps.leaving[there]
    return members
