"""The measured runs, predicted by jaxpipe's simulator with blocking messages.

Seconds come from the published profiles of layers and links, and from two constants of a node:

- Messages between stages: a GH200 node sends as through one of its four NICs, of 200 Gb/s. This is
  the nominal rate, not fitted.
- Gradients: the median of what the measured all-reduces achieved.

Both are upper limits of what the table of links says, so they change nothing for the nodes of the
RTX cards, which share 1 Gb/s or 25.

Memory is that of the judge (24 bytes for each parameter, the residuals of the live microbatches),
the gradients of the largest layer's residuals during its backward, and what a process takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median

from experiments.sailor.published import (
    Curve,
    LayerCost,
    Model,
    Place,
    links,
    measured_layout,
    model,
    table,
)
from jaxpipe.errors import PlanError
from jaxpipe.plan.cost import Part
from jaxpipe.search.layout import Group, Layout, layout_step
from jaxpipe.simulate import simulate

NIC_BYTES_PER_S = 25e9
"""One Slingshot NIC of a GH200 node."""
_BYTES = 4
_STATE_BYTES = 24
_PROCESS_BYTES = 3e9
"""Of a process with tensor parallelism, after the judge; GH200s take more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What the measured runs of GH200s add to the profiles; None: nothing is known."""

    message_bytes_per_s: float
    gradient_bytes_per_s: float
    gh200_process_bytes: float


KNOWN_BEFORE = Constants(
    message_bytes_per_s=float("inf"),
    gradient_bytes_per_s=float("inf"),
    gh200_process_bytes=_PROCESS_BYTES,
)
"""The profiles alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The simulated seconds of a step, and the most bytes that a GPU holds."""

    seconds: float
    memory_bytes: float


class ProfiledCosts:
    """The costs of a model from the published tables (`jaxpipe.search.layout.LayoutCosts`)."""

    def __init__(self, model: Model, constants: Constants) -> None:
        self._model = model
        self._constants = constants
        self._curves: dict[tuple[Place, Place], dict[tuple[int, int], Curve]] = {}
        for (source, streams, destination, to_streams), curve in links().items():
            known = self._curves.setdefault((source, destination), {})
            known[streams, to_streams] = curve

    def part(self, group: Group, layers: range, microbatch: int) -> Part:
        """Return layers on a group: seconds of a microbatch, parameters of all its GPUs."""
        costs = self._layer_costs(group, microbatch)[layers.start : layers.stop]
        sizes = self._model.sizes[group.tensor][layers.start : layers.stop]
        return Part(
            forward_s=sum(cost.forward_s for cost in costs),
            backward_s=sum(cost.backward_s for cost in costs),
            update_s=sum(cost.update_s for cost in costs),
            parameters=group.tensor * sum(size.parameters for size in sizes),
        )

    def output_bytes(self, microbatch: int) -> float:
        """Return the bytes of a microbatch's activations between two stages."""
        # All layers but the head have the same output.
        return _BYTES * self._model.sizes[1][1].output_floats * microbatch

    def activation_rate(self, one: Group, other: Group, num_bytes: float) -> float:
        """Return the bytes/s of a message between stages."""
        return min(self._rate(one, other, num_bytes), self._constants.message_bytes_per_s)

    def gradient_rate(self, one: Group, other: Group, num_bytes: float) -> float:
        """Return the bytes/s of a message between replicas, of all GPUs of the nodes together."""
        rate = self._rate(one, other, num_bytes / one.tensor)
        return min(rate, self._constants.gradient_bytes_per_s)

    def _rate(self, one: Group, other: Group, num_bytes: float) -> float:
        """Return the bytes/s of the streams that are fastest, at most one for each GPU.

        The table says 0.115 GB/s between Titan-RTX and RTX-2080 with 1 and 8 streams, and 2.86 with
        2 and 4: the former is what the nodes with RTX-3090 have.
        """
        return max(
            num_bytes / curve.seconds(num_bytes)
            for (streams, to_streams), curve in self._curves_of(one, other).items()
            if streams <= one.tensor and to_streams <= other.tensor
        )

    def curve(self, one: Group, other: Group, *, streams: int) -> Curve:
        """Return the seconds of messages of a number of streams."""
        return self._curves_of(one, other)[streams, streams]

    def _curves_of(self, one: Group, other: Group) -> dict[tuple[int, int], Curve]:
        curves = self._curves.get(((one.gpu, one.zone), (other.gpu, other.zone)))
        if curves is None:
            raise PlanError(
                f"`placement` must join GPUs whose links are published: {one} and {other} are not"
            )
        return curves

    def _layer_costs(self, group: Group, microbatch: int) -> tuple[LayerCost, ...]:
        """Return the layers at a microbatch; one that was not profiled scales from the nearest."""
        known = self._model.costs
        sizes = [size for gpu, size, tensor in known if (gpu, tensor) == group[::2]]
        if not sizes:
            choices = ", ".join(f"{gpu}:{t}" for gpu, t in sorted({key[::2] for key in known}))
            raise PlanError(
                f"`placement` must have profiled GPUs of {self._model.name}: {group} is not; "
                f"choose from {choices}"
            )
        near = min(sizes, key=lambda size: (abs(size - microbatch), size))
        scale = microbatch / near
        return tuple(
            LayerCost(cost.forward_s * scale, cost.backward_s * scale, cost.update_s)
            for cost in known[group.gpu, near, group.tensor]
        )


def predict(row: dict[str, str], constants: Constants) -> Prediction:
    """Return the prediction of a row in the form of `validation.csv`; its seconds are not read.

    Raises:
        PlanError: the row names a GPU, a model or links without a profile.
    """
    layout = measured_layout(row)
    found = model(row["model"])
    costs = ProfiledCosts(found, constants)
    step = layout_step(layout, costs, batch=int(row["batch"]), blocking=True)
    return Prediction(
        seconds=max(span.end_s for span in simulate(step).spans),
        memory_bytes=_memory_bytes(layout, found, int(row["batch"]), constants),
    )


def fit(rows: Sequence[dict[str, str]]) -> Constants:
    """Return the constants from measured runs; rows with a note are left out.

    The seconds of steps are not used, only those of the all-reduces and the bytes.
    """
    used = [row for row in rows if row["cluster"] == "clariden" and not row["note"]]
    if not used:
        return KNOWN_BEFORE
    rates = [rate for row in used if (rate := _achieved_bytes_per_s(row)) is not None]
    process = [
        float(row["memory_bytes"])
        - (predict_memory(row, KNOWN_BEFORE) - KNOWN_BEFORE.gh200_process_bytes)
        for row in used
    ]
    return Constants(
        message_bytes_per_s=NIC_BYTES_PER_S,
        gradient_bytes_per_s=median(rates),
        gh200_process_bytes=median(process),
    )


def predict_memory(row: dict[str, str], constants: Constants) -> float:
    """Return the most bytes of any GPU of a row."""
    return _memory_bytes(measured_layout(row), model(row["model"]), int(row["batch"]), constants)


def _achieved_bytes_per_s(row: dict[str, str]) -> float | None:
    """Return the bytes/s of a node in a measured ring all-reduce; None without replicas."""
    layout = measured_layout(row)
    replicas = layout.num_replicas
    if replicas == 1:
        return None
    costs = ProfiledCosts(model(row["model"]), KNOWN_BEFORE)
    largest = max(
        costs.part(stage[0].group, range(first, end), layout.microbatch).parameters
        for stage, (first, end) in zip(layout.stages, _ends(layout), strict=True)
    )
    sent = 2 * (replicas - 1) / replicas * _BYTES * largest
    return sent / float(row["reduce_seconds"])


def _memory_bytes(layout: Layout, model: Model, batch: int, constants: Constants) -> float:
    return max(
        _stage_bytes(model, group, range(*ends), layout.microbatch, live)
        + (constants.gh200_process_bytes if group.gpu == "GH-96" else _PROCESS_BYTES)
        for number, (stage, ends) in enumerate(zip(layout.stages, _ends(layout), strict=True))
        # 1F1B keeps at most one microbatch for each stage that follows, and its own.
        for live in [min(layout.num_stages - number, layout.num_microbatches(batch))]
        for group, _ in stage
    )


def _stage_bytes(model: Model, group: Group, layers: range, microbatch: int, live: int) -> float:
    sizes = model.sizes[group.tensor][layers.start : layers.stop]
    kept = [_BYTES * microbatch * size.kept_floats for size in sizes]
    # A backward holds the gradients of a layer's residuals, and what it computes them from.
    return _STATE_BYTES * sum(size.parameters for size in sizes) + sum(kept) * live + 2 * max(kept)


def _ends(layout: Layout) -> list[tuple[int, int]]:
    return list(pairwise([0, *accumulate(layout.cut)]))


def measured_rows() -> list[dict[str, str]]:
    """Return the measured runs."""
    return table("validation")
