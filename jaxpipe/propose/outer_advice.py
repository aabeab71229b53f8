"""Whether an outer loop pays: per-step sums against islands, by step and by time to equal loss.

All choices keep one plan: its stages, its replicas and their devices. An outer loop needs more
steps for the same loss (`jaxpipe.outer.loss_law`), so it wins where it saves more time in each::

    compute factor * seconds of its step  <  seconds of a step with per-step sums

Small batches and slow links between islands favour it; the crossovers say how small and how slow.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jaxpipe.collective import CodecKind
from jaxpipe.collective.codec.codecs import bytes_per_value
from jaxpipe.outer import OuterConfig
from jaxpipe.outer.loss_law import PUBLISHED_EVERY, LossPrice, loss_price
from jaxpipe.plan import Plan, islands_of
from jaxpipe.simulate import Conditions, extrapolated_step_s
from jaxpipe.simulate.outer_step import OuterTimes, outer_times
from jaxpipe.topo import Cluster

_CODECS = (CodecKind.NONE, CodecKind.INT8)
_MOST_DELAY = 5
"""The longest delay that costs no loss, as published (arXiv 2501.18512)."""
_DOUBLINGS = 6
"""Crossovers are sought up to 64 times, and down to a 64th of, the batch and the bandwidth."""
_HALVINGS = 8
"""So that a crossover is found to 3.3 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A way to combine gradients, its seconds per step, and per step's worth of loss.

    `outer` is None for sums in every step, whose codec is `codec`. `is_published` says whether the
    factor on compute is within published sizes.
    """

    outer: OuterConfig | None
    codec: CodecKind
    step_s: float
    compute_factor: float = 1.0
    is_published: bool = True

    @property
    def equal_loss_s(self) -> float:
        """The seconds in which it advances as far as a step with per-step sums does."""
        return self.compute_factor * self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterAdvice:
    """All choices, and where the best outer loop wins.

    Below `batch` samples, or with less than the fraction `bandwidth` of the bandwidth between its
    islands, the outer loop reaches the same loss sooner than per-step sums of the same codec; None:
    nowhere that was looked. A crossover at the end of the range that was looked at is that end.
    """

    choices: tuple[Choice, ...]
    batch: int | None
    bandwidth: float | None

    @property
    def fastest_step(self) -> Choice:
        """The choice with the shortest step."""
        return min(self.choices, key=lambda choice: choice.step_s)

    @property
    def fastest_to_loss(self) -> Choice:
        """The choice that reaches the same loss first."""
        return min(self.choices, key=lambda choice: choice.equal_loss_s)

    @property
    def best_outer(self) -> Choice:
        """The outer loop that reaches the same loss first."""
        outer = [choice for choice in self.choices if choice.outer is not None]
        return min(outer, key=lambda choice: choice.equal_loss_s)


def outer_advice(plan: Plan, conditions: Conditions) -> OuterAdvice | None:
    """Return the comparison for a plan; None if it has no islands of published numbers.

    Seconds are simulated, of long steps extrapolated: they are comparable among themselves.
    """
    islands = [m for m in range(2, plan.num_replicas + 1) if plan.num_replicas % m == 0]
    if not plan.has_equal_cuts or not islands or _price(conditions, islands[0]) is None:
        return None
    sums = tuple(_per_step(plan, conditions, codec) for codec in _CODECS)
    outer = tuple(
        choice
        for m in islands
        if _price(conditions, m) is not None
        for choice in outer_choices(plan, conditions, islands=m)
    )
    advice = OuterAdvice(choices=(*sums, *outer), batch=None, bandwidth=None)
    best = advice.best_outer.outer
    assert best is not None, advice
    return replace(
        advice,
        batch=_batch_crossover(plan, conditions, best),
        bandwidth=_bandwidth_crossover(plan, conditions, best),
    )


def _per_step(plan: Plan, conditions: Conditions, codec: CodecKind) -> Choice:
    """Return sums in every step, all of whose messages are compressed.

    The runtime compresses those across the root of a sync tree: with several replicas on an island
    these seconds are too few, in favour of per-step sums.
    """
    plain = conditions.gradient_bytes
    coded = plain if codec is CodecKind.NONE else bytes_per_value(codec)
    seconds = extrapolated_step_s(plan, replace(conditions, gradient_bytes=coded))
    return Choice(outer=None, codec=codec, step_s=seconds)


def outer_choices(
    plan: Plan, conditions: Conditions, *, islands: int, every: int = PUBLISHED_EVERY
) -> tuple[Choice, ...]:
    """Return the outer loops of `islands` islands, a number with a published loss, for each codec.

    For each the blocking one, and the one with the least delay that hides it. The price in loss is
    that of an outer step every 30 steps, which is published.
    """
    price = _price(conditions, islands)
    assert price is not None, islands
    settings: list[tuple[OuterConfig, OuterTimes]] = []
    for codec in _CODECS:
        outer = OuterConfig(islands=islands, every=every, codec=codec)
        times = _times(plan, conditions, outer)
        settings.append((outer, times))
        delay = -(-times.across_s // times.inner_s)
        if 0 < delay <= _MOST_DELAY:
            late = replace(outer, delay=int(delay), local_fraction=0.5)
            settings.append((late, times))
    return tuple(
        Choice(
            outer=outer,
            codec=outer.codec,
            step_s=times.step_s(outer),
            compute_factor=price.compute_factor,
            is_published=price.is_published,
        )
        for outer, times in settings
    )


def _times(plan: Plan, conditions: Conditions, outer: OuterConfig) -> OuterTimes:
    return outer_times(plan, conditions, outer, step_s=extrapolated_step_s)


def num_parameters(conditions: Conditions) -> float:
    """Return the parameters of the whole model."""
    profile = conditions.profile
    return sum(part.parameters for part in (profile.embed, *profile.layers, profile.head))


def _price(conditions: Conditions, islands: int) -> LossPrice | None:
    return loss_price(num_parameters=num_parameters(conditions), islands=islands)


def _saving(plan: Plan, conditions: Conditions, outer: OuterConfig) -> float:
    """Return by how much an outer loop is sooner at the same loss, in seconds per step's worth."""
    price = _price(conditions, outer.islands)
    assert price is not None, outer
    own_s = price.compute_factor * _times(plan, conditions, outer).step_s(outer)
    return _per_step(plan, conditions, outer.codec).step_s - own_s


def _batch_crossover(plan: Plan, conditions: Conditions, outer: OuterConfig) -> int | None:
    """Return the largest batch at which the outer loop wins, within the range."""
    if not plan.is_even:
        return None
    per_microbatch = plan.batch // plan.num_microbatches

    def saving(num_microbatches: float) -> float:
        resized = plan.of_each(num_microbatches=max(1, round(num_microbatches)))
        return _saving(resized, conditions, outer)

    most = plan.num_microbatches * 2**_DOUBLINGS
    found = _largest_winning(
        saving, least=max(1, plan.num_microbatches // 2**_DOUBLINGS), most=most
    )
    return None if found is None else round(found) * per_microbatch


def _bandwidth_crossover(plan: Plan, conditions: Conditions, outer: OuterConfig) -> float | None:
    """Return the largest fraction of the bandwidth between islands at which it wins."""
    number = {
        device: island.number
        for island in islands_of(plan, num_islands=outer.islands)
        for row in island.plan.placement
        for device in row
    }

    def saving(fraction: float) -> float:
        slower = _with_slower_links(conditions.cluster, number, fraction=fraction)
        return _saving(plan, replace(conditions, cluster=slower), outer)

    return _largest_winning(saving, least=2.0**-_DOUBLINGS, most=2.0**_DOUBLINGS)


def _largest_winning(
    saving: Callable[[float], float], *, least: float, most: float
) -> float | None:
    """Return the largest value with a saving; it falls as the value grows.

    >>> 2.9 < _largest_winning(lambda x: 3 - x, least=1 / 64, most=64) <= 3
    True
    """
    if saving(most) > 0:
        return most
    if saving(least) <= 0:
        return None
    for _ in range(_HALVINGS):
        middle = (least * most) ** 0.5  # both range over powers of two
        least, most = (middle, most) if saving(middle) > 0 else (least, middle)
    return least


def _with_slower_links(cluster: Cluster, island: dict[int, int], *, fraction: float) -> Cluster:
    """Return the cluster with a part of the bandwidth between devices of different islands."""
    bandwidth = cluster.bandwidth_bytes_per_s.copy()
    alone = cluster.alone_bytes_per_s.copy()
    for a, of_a in island.items():
        for b, of_b in island.items():
            if of_a != of_b:
                bandwidth[a, b] *= fraction
                alone[a, b] *= fraction
    regions: dict[str, set[int]] = defaultdict(set)
    for device, number in island.items():
        regions[cluster.devices[device].region].add(number)
    return replace(
        cluster,
        bandwidth_bytes_per_s=bandwidth,
        alone_bytes_per_s=alone,
        trunks=tuple(
            # One that joins parts of an island stays as it is.
            trunk
            if regions[trunk.source] & regions[trunk.destination]
            else replace(trunk, bytes_per_s=fraction * trunk.bytes_per_s)
            for trunk in cluster.trunks
        ),
    )


def advice_lines(advice: OuterAdvice | None, *, batch: int) -> Sequence[str]:
    """Return the comparison as lines of text."""
    if advice is None:
        return (
            "no outer loop was compared: the plan has one replica, or replicas of different "
            "partitions",
        )
    rows = [
        f"  {choice_name(choice):<44}{choice.step_s:10.4g} s{choice.compute_factor:8.3f}x"
        f"{choice.equal_loss_s:10.4g} s{'' if choice.is_published else '   beyond published sizes'}"
        for choice in advice.choices
    ]
    best = choice_name(advice.best_outer)
    return [
        "an outer loop on this plan (simulated; loss by published scaling laws, arXiv 2503.09799)",
        f"  {'':<44}{'a step':>12}{'compute':>9}{'equal loss':>12}",
        *rows,
        f"  fastest step: {choice_name(advice.fastest_step)}",
        f"  first at equal loss: {choice_name(advice.fastest_to_loss)}",
        f"  {best} wins at equal loss {_batch_words(advice.batch, batch)}",
        f"  and, at batch {batch}, {_bandwidth_words(advice.bandwidth)}",
    ]


def _batch_words(crossover: int | None, batch: int) -> str:
    if crossover is None:
        return f"at no batch from {max(1, batch >> _DOUBLINGS)} to {batch << _DOUBLINGS}"
    if crossover >= batch << _DOUBLINGS:
        return f"at any batch up to {crossover}"
    return f"at batches up to about {crossover}"


def _bandwidth_words(crossover: float | None) -> str:
    if crossover is None:
        return f"with no more than a {2**_DOUBLINGS}th of the bandwidth, if at all"
    if crossover >= 2.0**_DOUBLINGS:
        return f"even with {crossover:g} times the bandwidth between its islands"
    return f"with at most {crossover:.3g} times the bandwidth between its islands"


def choice_name(choice: Choice) -> str:
    """Return a choice in words."""
    codec = "" if choice.codec is CodecKind.NONE else f", {choice.codec}"
    outer = choice.outer
    if outer is None:
        return f"sums in every step{codec}"
    delay = f", delay {outer.delay}" if outer.delay else ""
    return f"{outer.islands} islands, every {outer.every} steps{codec}{delay}"
