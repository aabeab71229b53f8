"""Seconds of whole stages, which any system can measure, as the profile of a model.

The file has `stages` in place of layers::

    {
      "device": "a core, torch 2.14",
      "microbatch": 4,                  samples per microbatch in these numbers
      "stages": [
        {"layers": 3, "forward_s": 0.031, "backward_s": 0.06, "backward_input_s": 0.03,
         "backward_weight_s": 0.032, "update_s": 0.005},
        ...                             one for each stage, in order
      ]
    }

The first stage has the embedding as well, the last the head. `backward_input_s`,
`backward_weight_s`, `update_s` and `software` are optional, as in a profile of layers.

Parameters, bytes and FLOPs are those that jaxpipe counts for the model. The seconds of a stage are
divided among its layers in proportion to their FLOPs, those of its update in proportion to their
parameters. Stages of the measured partition have exactly the measured seconds, those of another
partition estimated ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from jaxpipe.plan.cost.layer_profile import NO_SOFTWARE, Part, Profile, Software


class TimedStage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stage of `layers` layers: seconds of a microbatch, and of the update."""

    layers: int
    forward_s: float
    backward_s: float
    backward_input_s: float | None = None
    backward_weight_s: float | None = None
    update_s: float = 0.0

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"`layers` must be at least 1, is {self.layers}")
        # It checks the seconds.
        Part(
            forward_s=self.forward_s,
            backward_s=self.backward_s,
            backward_input_s=self.backward_input_s,
            backward_weight_s=self.backward_weight_s,
            update_s=self.update_s,
        )


class StageTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stages of a model on one device; the docstring of the module describes the file."""

    device: str
    microbatch: int
    stages: tuple[TimedStage, ...]
    software: Software = NO_SOFTWARE

    def __post_init__(self) -> None:
        if self.microbatch < 1 or not self.stages:
            raise ValueError(
                f"`microbatch` ({self.microbatch}) must be at least 1, and `stages` not empty, has "
                f"{len(self.stages)}"
            )
        if not sum(stage.forward_s + stage.backward_s for stage in self.stages) > 0:
            raise ValueError("`stages` must take some seconds, and take none")


def profile_of_stages(times: StageTimes, counted: Profile) -> Profile:
    """Return the profile in which the stages take the measured seconds.

    `counted` is of the same model: FLOPs as the seconds of a device of 1 FLOP/s.

    >>> from jaxpipe.plan.cost import flop_profile
    >>> model = flop_profile(
    ...     num_layers=4, layer_flop=1.0, layer_parameters=1, layer_kept_bytes=1,
    ...     activation_bytes=1, head_flop=1.0, flops_per_s=1.0,
    ... )
    >>> stage = TimedStage(layers=2, forward_s=3.0, backward_s=6.0)
    >>> profile = profile_of_stages(
    ...     StageTimes(device="a core", microbatch=1, stages=(stage, stage)), model
    ... )
    >>> [layer.forward_s for layer in profile.layers], profile.head.forward_s
    ([1.5, 1.5, 1.0, 1.0], 1.0)
    >>> profile.stage((2, 2), 1).backward_s, round(profile.flops_per_s, 3)  # 15 FLOP in 18 s
    (6.0, 0.833)

    Raises:
        ValueError: the model has another number of layers.
    """
    num_layers = sum(stage.layers for stage in times.stages)
    if num_layers != len(counted.layers):
        listed = ",".join(str(stage.layers) for stage in times.stages)
        raise ValueError(
            f"`stages` have {listed} layers, {num_layers} together, and the model has "
            f"{len(counted.layers)}; measure this model"
        )
    counted = counted.scaled(microbatch=times.microbatch)
    parts: list[Part] = []
    left = [counted.embed, *counted.layers, counted.head]
    for number, stage in enumerate(times.stages):
        size = stage.layers + (number == 0) + (number == len(times.stages) - 1)
        parts += _timed(stage, left[:size], has_embedding=number == 0)
        left = left[size:]
    embed, *layers, head = parts
    counts = (counted.embed, *counted.layers, counted.head)
    return replace(
        counted,
        device=times.device,
        flops_per_s=_computed(counts) / _computed(parts),
        embed=embed,
        layers=tuple(layers),
        head=head,
        software=times.software,
    )


def _timed(stage: TimedStage, members: Sequence[Part], *, has_embedding: bool) -> list[Part]:
    """Return the counted parts of a stage with their shares of its measured seconds."""

    def shares(total_s: float | None, work: Callable[[Part], float]) -> Sequence[float | None]:
        if total_s is None:
            return [None] * len(members)
        return _divided(total_s, [work(part) for part in members])

    parameters = [float(part.parameters) for part in members]
    if has_embedding:
        # A tied embedding is updated in the last stage as well, where it was measured, too.
        parameters[0] = 0.0
    columns = zip(
        members,
        _divided(stage.forward_s, [part.forward_s for part in members]),
        _divided(stage.backward_s, [part.backward_s for part in members]),
        shares(stage.backward_input_s, lambda part: part.earlier_s),
        shares(stage.backward_weight_s, lambda part: part.later_s),
        _divided(stage.update_s, parameters),
        strict=True,
    )
    return [
        replace(
            part,
            forward_s=forward_s,
            backward_s=backward_s,
            backward_input_s=input_s,
            backward_weight_s=weight_s,
            update_s=update_s,
        )
        for part, forward_s, backward_s, input_s, weight_s, update_s in columns
    ]


def _divided(total: float, weights: Sequence[float]) -> list[float]:
    """Return shares of a total in proportion to weights, of which some are above 0."""
    return [total * weight / sum(weights) for weight in weights]


def _computed(parts: Sequence[Part]) -> float:
    return sum(part.forward_s + part.backward_s for part in parts)
