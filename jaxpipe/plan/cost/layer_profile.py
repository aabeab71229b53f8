"""Profile of a model on one device: seconds, parameters and bytes, measured or from FLOPs.

A measured profile is a JSON file::

    {
      "device": "V100-SXM2",            what it was measured on
      "flops_per_s": 45e12,             its effective speed there; other devices scale by theirs
      "microbatch": 1,                  samples per microbatch in these numbers
      "activation_bytes": 8388608,      what a stage sends to the next
      "embed": {"forward_s": 0.001, "backward_s": 0.002, "parameters": 63582208, "kept_bytes": 0},
      "layers": [{...}, ...],           one for each layer, the same keys
      "head": {...}
    }

`parameters` is a number, not bytes; `kept_bytes` are the residuals of one forward, under the
rematerialisation policy of the measurement. `backward_weight_s` is optional: the seconds of the
backward-weight if a schedule splits the backward, by default half. `backward_input_s` is optional:
those of the other half, by default the rest of the backward. `update_s` is optional: the
seconds of the optimizer for these parameters, once per step, by default 0. `trained` is optional:
how many of the parameters have a gradient and moments, by default all; with adapters, theirs.
`frozen_rows` is optional: how many of those never change, since a layer is frozen of which other
layers are trained, by default 0.

`narrow_bytes` is optional: what a stage sends in place of `activation_bytes` where the model keeps
fewer numbers of a token, by the number of layers before the cut: `{"4": 1048576}`.

`coding` is optional: for codecs of messages by name, such as `int8`, the seconds in which one core
of the host encodes and decodes a value: `{"encode_s": 2.7e-9, "decode_s": 4e-10}`.

`sizes` is optional: the same profile measured with other sizes of microbatches. `software` is
optional: the seconds of a rank beside its layers, `Software`.

Another system, which has stages and not layers, may write `stages` in place of `activation_bytes`,
`embed`, `layers` and `head`: see `jaxpipe.plan.cost.stage_times`.
"""

from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf, log

from jaxpipe.collective import CodingRates
from jaxpipe.plan.partition import Cut, layers_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A layer, a stage, the embedding or the head, for one microbatch."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    parameters: int = 0
    kept_bytes: int = 0
    backward_weight_s: float | None = None
    update_s: float = 0.0
    trained: int | None = None
    backward_input_s: float | None = None
    frozen_rows: int = 0

    def __post_init__(self) -> None:
        # Measured on their own, both halves together may take longer than the whole.
        most_s = self.backward_s if self.backward_input_s is None else inf
        if self.backward_weight_s is not None and not 0 <= self.backward_weight_s <= most_s:
            raise ValueError(
                f"`backward_weight_s` ({self.backward_weight_s}) must be at most `backward_s` "
                f"({self.backward_s}), of which it is a part"
            )
        if self.backward_input_s is not None and not self.backward_input_s >= 0:
            raise ValueError(f"`backward_input_s` must not be negative, is {self.backward_input_s}")
        if self.trained is not None and not 0 <= self.trained <= self.parameters:
            raise ValueError(
                f"`trained` ({self.trained}) must be at most `parameters` ({self.parameters}), of "
                "which it is a part"
            )
        for name in ("forward_s", "backward_s", "parameters", "kept_bytes", "update_s"):
            if not getattr(self, name) >= 0:  # refuses NaN too, as `< 0` would not
                raise ValueError(f"`{name}` must not be negative, is {getattr(self, name)}")
        if not 0 <= self.frozen_rows <= self.num_gradients:
            raise ValueError(
                f"`frozen_rows` ({self.frozen_rows}) must be at most {self.num_gradients}, the "
                "parameters with a gradient"
            )

    def __add__(self, other: "Part") -> "Part":
        # If only one part has a measured backward-weight, the other counts as half.
        neither = self.backward_weight_s is None and other.backward_weight_s is None
        return Part(
            forward_s=self.forward_s + other.forward_s,
            backward_s=self.backward_s + other.backward_s,
            parameters=self.parameters + other.parameters,
            kept_bytes=self.kept_bytes + other.kept_bytes,
            backward_weight_s=None if neither else self.later_s + other.later_s,
            update_s=self.update_s + other.update_s,
            trained=None
            if self.trained is None and other.trained is None
            else self.num_gradients + other.num_gradients,
            backward_input_s=None
            if self.backward_input_s is None and other.backward_input_s is None
            else self.earlier_s + other.earlier_s,
            frozen_rows=self.frozen_rows + other.frozen_rows,
        )

    @property
    def num_gradients(self) -> int:
        """The number of parameters with a gradient."""
        return self.parameters if self.trained is None else self.trained

    @property
    def num_changing(self) -> int:
        """The number of parameters that training changes: those of outer steps."""
        return self.num_gradients - self.frozen_rows

    @property
    def later_s(self) -> float:
        """The seconds of the backward-weight."""
        return self.backward_s / 2 if self.backward_weight_s is None else self.backward_weight_s

    @property
    def earlier_s(self) -> float:
        """The seconds of the backward-input."""
        if self.backward_input_s is None:
            return self.backward_s - self.later_s
        return self.backward_input_s

    def delayed(self, *, forward_s: float, backward_s: float) -> "Part":
        """Return the part with more seconds of a rank for each forward, and for each backward.

        Of a backward in halves they belong to the first; the second takes as long as before.
        """
        return replace(
            self,
            forward_s=self.forward_s + forward_s,
            backward_s=self.backward_s + backward_s,
            backward_weight_s=self.later_s,
            backward_input_s=self.earlier_s + backward_s,
        )

    def scaled(self, factor: float) -> "Part":
        """Return the part for `factor` times the samples; parameters and update are the same."""
        return Part(
            forward_s=self.forward_s * factor,
            backward_s=self.backward_s * factor,
            parameters=self.parameters,
            kept_bytes=round(self.kept_bytes * factor),
            backward_weight_s=None
            if self.backward_weight_s is None
            else self.backward_weight_s * factor,
            update_s=self.update_s,
            trained=self.trained,
            backward_input_s=None
            if self.backward_input_s is None
            else self.backward_input_s * factor,
            frozen_rows=self.frozen_rows,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The seconds of a rank beside its layers: its interpreter, its messages, its steps.

    Each forward and backward takes `call_s` more. A message to or from another rank keeps a rank
    busy for `message_s`, and `byte_s` for each of its bytes: it is copied on both sides. `step_s`
    is once a step. Of a message `eager_bytes` leave before its receive is posted, None: all;
    `posts_ahead` says that it is posted as early as PyTorch's runtime does, not when it is needed.
    """

    call_s: float = 0.0
    message_s: float = 0.0
    byte_s: float = 0.0
    step_s: float = 0.0
    eager_bytes: float | None = None
    posts_ahead: bool = False

    def __post_init__(self) -> None:
        for name in ("call_s", "message_s", "byte_s", "step_s", "eager_bytes"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"`{name}` must not be negative, is {value}")

    def message(self, num_bytes: float) -> float:
        """Return the seconds for which a message keeps either rank busy."""
        return self.message_s + self.byte_s * num_bytes


NO_SOFTWARE = Software()
"""A rank that does nothing beside its layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A model on one device; the docstring of the module describes the fields."""

    device: str
    flops_per_s: float
    microbatch: int
    activation_bytes: int
    embed: Part
    layers: tuple[Part, ...]
    head: Part
    narrow_bytes: dict[int, int] = field(default_factory=dict)
    coding: CodingRates = field(default_factory=dict)
    sizes: tuple["Profile", ...] = ()
    software: Software = NO_SOFTWARE

    def __post_init__(self) -> None:
        if not self.flops_per_s > 0 or self.microbatch < 1 or not self.layers:
            raise ValueError(
                f"`flops_per_s` ({self.flops_per_s}) must be positive, `microbatch` "
                f"({self.microbatch}) at least 1, and `layers` not empty, has {len(self.layers)}"
            )
        for after, num_bytes in self.narrow_bytes.items():
            if not (0 < after < len(self.layers) and num_bytes > 0):
                raise ValueError(
                    f"`narrow_bytes` must be bytes of cuts after 1 to {len(self.layers) - 1} "
                    f"layers, not {num_bytes} after {after}"
                )
        for codec, costs in self.coding.items():
            if not min(costs.encode_s, costs.decode_s) >= 0:
                raise ValueError(f"`coding.{codec}` must not have negative seconds: {costs}")

    def message_bytes(self, cut: Cut) -> tuple[int, ...]:
        """Return the bytes of a message between each stage and the next one."""
        places = accumulate(cut[:-1])
        return tuple(self.narrow_bytes.get(after, self.activation_bytes) for after in places)

    def stage(self, cut: Cut, stage: int) -> Part:
        """Return a stage of a partition; the first holds the embedding, the last the head."""
        total = Part()
        for layer in layers_of(cut, stage):
            total += self.layers[layer]
        if stage == 0:
            total += self.embed
        return total + self.head if stage == len(cut) - 1 else total

    def update_s(self, cut: Cut, stage: int, *, tied: bool) -> float:
        """Return the seconds of the optimizer of a stage; both ends update a tied embedding."""
        # With one stage, embedding and head are one array, updated once.
        twice = tied and 0 < stage == len(cut) - 1
        return self.stage(cut, stage).update_s + (self.embed.update_s if twice else 0.0)

    def scaled(self, *, microbatch: int) -> "Profile":
        """Return the profile for another size of microbatches.

        Seconds are those of the measured size that is nearest, in proportion to the samples.
        """
        if microbatch == self.microbatch:
            return self
        near = min((self, *self.sizes), key=lambda size: abs(log(size.microbatch / microbatch)))
        factor = microbatch / near.microbatch
        return replace(
            near,
            microbatch=microbatch,
            activation_bytes=round(near.activation_bytes * factor),
            narrow_bytes={after: round(n * factor) for after, n in near.narrow_bytes.items()},
            embed=near.embed.scaled(factor),
            layers=tuple(layer.scaled(factor) for layer in near.layers),
            head=near.head.scaled(factor),
            sizes=self.sizes,
        )


def flop_profile(  # noqa: PLR0913 - the numbers that define a uniform model
    *,
    num_layers: int,
    layer_flop: float,
    layer_parameters: int,
    layer_kept_bytes: int,
    activation_bytes: int,
    embed_parameters: int = 0,
    head_parameters: int = 0,
    head_flop: float = 0.0,
    recomputes: bool = False,
    flops_per_s: float,
) -> Profile:
    """Return the profile of a model of equal layers that computes at `flops_per_s`.

    FLOPs are those of a forward on one sample. A backward takes two forwards, and one more where
    it recomputes.

    >>> profile = flop_profile(
    ...     num_layers=2, layer_flop=6e9, layer_parameters=10, layer_kept_bytes=1,
    ...     activation_bytes=1, flops_per_s=2e9, recomputes=True,
    ... )
    >>> whole = profile.stage((2,), 0)
    >>> whole.forward_s, whole.backward_s, whole.parameters, whole.kept_bytes
    (6.0, 18.0, 20, 2)
    """
    forwards = 3 if recomputes else 2
    layer_s, head_s = layer_flop / flops_per_s, head_flop / flops_per_s
    layer = Part(
        forward_s=layer_s,
        backward_s=forwards * layer_s,
        parameters=layer_parameters,
        kept_bytes=layer_kept_bytes,
    )
    return Profile(
        device="computed",
        flops_per_s=flops_per_s,
        microbatch=1,
        activation_bytes=activation_bytes,
        embed=Part(parameters=embed_parameters),
        layers=(layer,) * num_layers,
        head=Part(forward_s=head_s, backward_s=2 * head_s, parameters=head_parameters),
    )
