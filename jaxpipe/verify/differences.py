"""Differences between what ranks and one device have computed, in the order of a step.

The first that is too large is nearest to its cause: wrong samples make every activation wrong, a
wrong activation every later one, and all of them the gradients.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any

import numpy as np

from jaxpipe.plan import Plan
from jaxpipe.runtime.job import Job
from jaxpipe.verify.one_device import DeviceStep, Tensors
from jaxpipe.verify.ranks import RankResult, RankStep

TOLERANCE = 1e-9
"""Of the largest value of a tensor. In float64 rounding stays far below, and errors far above."""
_NOISE = 1e-10
"""Of the largest gradient: a smaller one is rounding, whose sign an optimizer may turn into a
whole update."""
_SMALL = 1e-4
"""Of the largest value of any tensor: a tensor of smaller ones is compared with this."""


class Subject(StrEnum):
    """What is compared, in the order of a step."""

    PARAMETERS = "initial parameters"
    SAMPLES = "samples read"
    ACTIVATIONS = "activations between stages"
    LOSS = "loss"
    OF_ACTIVATIONS = "gradients between stages"
    GRADIENTS = "gradients of parameters"
    NORM = "norm before clipping"
    UPDATES = "updated parameters"
    MOMENTS = "state of the optimizer"
    HELD_OUT = "held-out loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The largest difference of one array, relative to its size; infinite if it is not there.

    `rank` is that of the smaller plan, `microbatch` counts over all replicas.
    """

    subject: Subject
    error: float
    step: int
    rank: int
    tensor: str = ""
    stage: int | None = None
    microbatch: int | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether it is more than rounding."""
        return not self.error <= TOLERANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceResult:
    """What one device has computed: the tensors at the start and after each step.

    It has read the rows of some `replicas`: those of an island, or all.
    """

    replicas: range
    first: Tensors
    steps: tuple[DeviceStep, ...]
    tensors: tuple[Tensors, ...]
    held_out_loss: float
    outer_momentum: Tensors


def differences(
    job: Job, results: Sequence[RankResult], devices: Sequence[DeviceResult]
) -> Iterator[Difference]:
    """Yield the difference of everything that ranks have computed, in the order of a step.

    `devices` have what one device computes, of all islands.
    """
    # Outer steps carry the rounding of one island to all of them. Where a device has summed to 0 by
    # chance, a rank may have rounding, whose sign is all that Lion reads.
    gradients = [[step.gradients for step in part.steps] for part in (*devices, *results)]
    num_steps = len(devices[0].steps)
    noise = [_noise([*chain(*(steps[: n + 1] for steps in gradients))]) for n in range(num_steps)]
    for device in devices:
        yield from _of_device(job, results, device, noise)


def _of_device(
    job: Job,
    results: Sequence[RankResult],
    device: DeviceResult,
    noise: Sequence[Mapping[str, np.ndarray]],
) -> Iterator[Difference]:
    results = [result for result in results if job.plan.replica(result.rank) in device.replicas]
    for result in results:
        yield from _of_tensors(
            Subject.PARAMETERS, result.first, device.first, job, rank=result.rank, step=-1
        )
    yield from _missing(job.plan, results, device)
    for step, expected in enumerate(device.steps):
        of_ranks = [(result.rank, result.steps[step]) for result in results]
        yield from _of_samples(job.plan, of_ranks, expected, step)
        yield from _of_boundaries(job.plan, of_ranks, expected, step)
        for rank, computed in of_ranks:
            yield from _of_step(job, rank, computed, device, noise[step], step)
    for result in results:
        error = _relative(result.held_out_loss, device.held_out_loss)
        last = len(device.steps) - 1
        yield from _of_tensors(
            Subject.MOMENTS,
            _without(noise[last], result.outer_momentum, device.outer_momentum),
            device.outer_momentum,
            job,
            rank=result.rank,
            step=last,
        )
        yield Difference(subject=Subject.HELD_OUT, error=error, step=last, rank=result.rank)


def _of_samples(
    plan: Plan, of_ranks: Sequence[tuple[int, RankStep]], device: DeviceStep, step: int
) -> Iterator[Difference]:
    """Compare what the ranks of each replica have read with its rows of the batch."""
    for rank, computed in of_ranks:
        if computed.samples is None:
            continue
        share = plan.rows(plan.replica(rank))
        expected = device.samples[share.start : share.stop]
        samples = computed.samples.reshape(-1, *expected.shape[1:])
        error = 0.0 if np.array_equal(samples, expected) else np.inf
        yield Difference(subject=Subject.SAMPLES, error=error, step=step, rank=rank)


def _of_boundaries(
    plan: Plan, of_ranks: Sequence[tuple[int, RankStep]], expected: DeviceStep, step: int
) -> Iterator[Difference]:
    """Compare activations from the first stage on, then their gradients from the last stage on."""
    gradients = chain.from_iterable(entering.values() for entering in expected.of_hidden.values())
    largest = max(float(np.abs(array).max()) for array in gradients)
    forwards, backwards = [], []
    for rank, computed in of_ranks:
        replica = plan.replica(rank)
        first = plan.first_microbatch(replica)
        for stage in plan.stages(rank):
            layers = plan.layers(stage, replica=replica)
            is_last = stage == plan.pipelines[replica].num_stages - 1
            for number in range(first, first + plan.pipelines[replica].num_microbatches):
                common: dict[str, Any] = {
                    "step": step,
                    "rank": rank,
                    "stage": stage,
                    "microbatch": number,
                }
                key = (stage, number)
                if not is_last:
                    output = expected.hidden[number][layers.stop]
                    error = _error(computed.boundaries.outputs.get(key), output)
                    forwards.append(Difference(subject=Subject.ACTIVATIONS, error=error, **common))
                if stage > 0:
                    of_input = expected.of_hidden[number][layers.start]
                    error = _error(
                        computed.boundaries.of_inputs.get(key), of_input, least=_SMALL * largest
                    )
                    backwards.append(
                        Difference(subject=Subject.OF_ACTIVATIONS, error=error, **common)
                    )
    yield from sorted(forwards, key=lambda d: (d.stage or 0, d.microbatch or 0))
    yield from sorted(backwards, key=lambda d: (-(d.stage or 0), d.microbatch or 0))


def _of_step(
    job: Job,
    rank: int,
    computed: RankStep,
    device: DeviceResult,
    noise: Mapping[str, np.ndarray],
    step: int,
) -> Iterator[Difference]:
    expected = device.steps[step]
    scalars = (
        (Subject.LOSS, computed.loss, expected.loss, "mean"),
        (Subject.LOSS, computed.num_targets, expected.num_targets, "targets"),
        (Subject.NORM, computed.norm, expected.norm, "gradients alone"),
        (Subject.NORM, computed.updated_norm, expected.norm, "of the update"),
    )
    for subject, value, exact, name in scalars:
        error = _relative(value, exact)
        yield Difference(subject=subject, error=error, step=step, rank=rank, tensor=name)
    yield from _of_tensors(
        Subject.GRADIENTS, computed.gradients, expected.gradients, job, rank=rank, step=step
    )
    yield from _of_state(job, rank, computed, device.tensors[step], noise, step)


def _of_state(
    job: Job,
    rank: int,
    computed: RankStep,
    expected: Tensors,
    noise: Mapping[str, np.ndarray],
    step: int,
) -> Iterator[Difference]:
    """Compare parameters and moments, but for elements whose gradient is rounding."""
    parameters = set(parameter_names(expected))
    for name, tensor in computed.tensors.items():
        is_parameter = name in parameters
        exact = expected.get(name)
        if exact is None:
            yield _wrong(Subject.MOMENTS, name, job, rank=rank, step=step)
            continue
        parameter = name if is_parameter else name.partition(".")[2]
        judged = _judged(noise.get(parameter), tensor, exact)
        moment = name.partition(".")[0]
        least = job.optimizer.learning_rate
        if not is_parameter:
            least = _SMALL * _largest(t for n, t in expected.items() if n.startswith(f"{moment}."))
        yield Difference(
            subject=Subject.UPDATES if is_parameter else Subject.MOMENTS,
            error=_error(judged, exact, least=least),
            step=step,
            rank=rank,
            tensor=name,
            stage=stage_of(job.plan, name, rank=rank),
        )


def _without(noise: Mapping[str, np.ndarray], tensors: Tensors, expected: Tensors) -> Tensors:
    """Return tensors with exact values where a gradient is rounding."""
    return {
        name: _judged(noise.get(name), tensor, expected[name]) if name in expected else tensor
        for name, tensor in tensors.items()
    }


def _judged(hidden: np.ndarray | None, tensor: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return a tensor with exact values where it is hidden, if shapes are equal."""
    if hidden is None or not hidden.shape == tensor.shape == exact.shape:
        return tensor
    return np.where(hidden, exact, tensor)


def parameter_names(tensors: Tensors) -> tuple[str, ...]:
    """Return the names of parameters among those of parameters and moments."""
    return tuple(n for n in tensors if n.partition(".")[0] in ("embed", "blocks", "head"))


def _of_tensors(
    subject: Subject, tensors: Tensors, expected: Tensors, job: Job, *, rank: int, step: int
) -> Iterator[Difference]:
    least = _SMALL * _largest(expected.values())
    for name, tensor in tensors.items():
        exact = expected.get(name)
        yield Difference(
            subject=subject,
            error=np.inf if exact is None else _error(tensor, exact, least=least),
            step=step,
            rank=rank,
            tensor=name,
            stage=stage_of(job.plan, name, rank=rank),
        )


def _wrong(subject: Subject, name: str, job: Job, *, rank: int, step: int) -> Difference:
    stage = stage_of(job.plan, name, rank=rank)
    return Difference(subject=subject, error=np.inf, step=step, rank=rank, tensor=name, stage=stage)


def _missing(
    plan: Plan, results: Sequence[RankResult], device: DeviceResult
) -> Iterator[Difference]:
    """Yield a difference for each parameter that no rank of a replica has."""
    names = set(parameter_names(device.first))
    for replica in device.replicas:
        of_replica = [r for r in results if plan.replica(r.rank) == replica]
        present = {name for result in of_replica for name in result.first}
        for name in sorted(names - present):
            yield Difference(
                subject=Subject.PARAMETERS,
                error=np.inf,
                step=-1,
                rank=of_replica[0].rank,
                tensor=name,
            )


def stage_of(plan: Plan, tensor: str, *, rank: int) -> int:
    """Return the stage of a rank that holds a tensor, by the layer in its name."""
    stages, replica = plan.stages(rank), plan.replica(rank)
    words = tensor.split(".")
    if "blocks" in words:
        layer = int(words[words.index("blocks") + 1])
        return next((s for s in stages if layer in plan.layers(s, replica=replica)), stages[0])
    return stages[-1] if "head" in words else stages[0]


def _noise(gradients: Sequence[Tensors]) -> dict[str, np.ndarray]:
    """Return which elements have, in any of these, a gradient that is rounding and not 0."""
    masks: dict[str, np.ndarray] = {}
    for tensors in gradients:
        limit = _NOISE * _largest(tensors.values())
        for name, tensor in tensors.items():
            mask = (np.abs(tensor) < limit) & (tensor != 0)
            # A tensor of another shape is a difference by itself.
            if masks.setdefault(name, mask).shape == mask.shape:
                masks[name] |= mask
    return masks


def _largest(tensors: Iterable[np.ndarray]) -> float:
    return max((float(np.abs(tensor).max(initial=0)) for tensor in tensors), default=0.0)


def _relative(value: float, exact: float) -> float:
    error = abs(value - exact) / abs(exact) if exact else abs(value)
    return error if np.isfinite(error) else np.inf


def _error(array: np.ndarray | None, exact: np.ndarray, *, least: float = 0.0) -> float:
    """Return the largest difference over the largest exact value, or over `least`."""
    if array is None or array.shape != exact.shape:
        return np.inf
    difference = float(np.abs(array - exact).max(initial=0))
    scale = max(float(np.abs(exact).max(initial=0)), least)
    if not np.isfinite(difference) or not np.isfinite(scale):
        return np.inf
    return difference / scale if scale else difference
