"""Costs of a model of which a part is trained: fewer gradients and moments, one copy more."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from jaxpipe.errors import ConfigError
from jaxpipe.finetune.lora_config import LoraConfig
from jaxpipe.models import DTYPE_BYTES, ModelConfig
from jaxpipe.plan.cost import BytesPerParameter, Part, Profile

if TYPE_CHECKING:  # it imports jax, for which plans of whole models need not wait
    from jaxpipe.finetune.trained_parameters import PartCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedPart:
    """The adapters of a model, or the patterns of its frozen parameters; by default it has none.

    Seconds stay as they are: the backward computes the gradient of each merged kernel, and projects
    it. See `jaxpipe.finetune`.
    """

    lora: LoraConfig = field(default_factory=LoraConfig)
    frozen: Sequence[str] = ()

    @property
    def is_all(self) -> bool:
        """Whether all parameters are trained."""
        return not self.lora.is_on and not self.frozen

    def profile(self, whole: Profile, model: ModelConfig) -> Profile:
        """Return the profile with adapters, and with what is trained. Imports jax.

        Raises:
            ConfigError: a pattern matches nothing, or adapters and patterns are both given.
        """
        if self.is_all:
            return whole
        if self.lora.is_on and self.frozen:
            raise ConfigError(
                f"with adapters all other parameters are frozen: `lora.rank` is {self.lora.rank}, "
                f"and `train.frozen` {', '.join(self.frozen)}; leave out one of them"
            )
        from jaxpipe.finetune.trained_parameters import (
            all_parameters,
            frozen_rows,
            trained_parameters,
        )
        from jaxpipe.finetune.tuned_model import tuned
        from jaxpipe.models import build_model

        tuned_model = tuned(build_model(model), lora=self.lora, frozen=tuple(self.frozen))
        return _with_counts(
            whole,
            all_parameters(tuned_model),
            trained_parameters(tuned_model),
            frozen_rows(tuned_model),
        )

    def bytes_each(self, whole: BytesPerParameter, model: ModelConfig) -> BytesPerParameter:
        """Return the bytes per parameter; layers with adapters read a merged copy."""
        if not self.lora.is_on:
            return whole
        return replace(whole, copy=DTYPE_BYTES[model.compute_dtype])


def _with_counts(
    profile: Profile, every: "PartCounts", trained: "PartCounts", frozen: Sequence[int]
) -> Profile:
    def part(of: Part, all_of_it: int, trained_of_it: int, frozen_rows: int = 0) -> Part:
        return replace(of, parameters=all_of_it, trained=trained_of_it, frozen_rows=frozen_rows)

    return replace(
        profile,
        embed=part(profile.embed, every.embed, trained.embed),
        layers=tuple(
            part(layer, every.layer, trained.layer, rows)
            for layer, rows in zip(profile.layers, frozen, strict=True)
        ),
        head=part(profile.head, every.head, trained.head),
    )
