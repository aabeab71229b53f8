"""The work of Alpa's GPT, part by part, on the devices of axis op of one stage.

Products and memory traffic are the closed forms of `jaxpipe.baselines.gpt.alpa_gpt`, collectives
those that the intra-operator search chooses. With recomputation a layer keeps its input; during its
own backward, and without, it keeps per token and width 10 + 24 / op elements of activations in 16
bits, and 5 x heads x sequence / (width x op) of attention.

Source: Korthikanti et al., "Reducing activation recomputation", 2022, equation 2.
"""

from dataclasses import dataclass

from jaxpipe.baselines.autoshard.hlo import TargetSpeeds
from jaxpipe.baselines.autoshard.inter_op import ModelWork, PartWork
from jaxpipe.baselines.autoshard.inter_op.searched_collectives import SearchedCollectives
from jaxpipe.baselines.gpt.alpa_gpt import num_positions, step_flops, step_memory_bytes
from jaxpipe.models import GptConfig
from jaxpipe.models.gpt_config import DTYPE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class AlpaWorks:
    """The work of a model's parts; see the module."""

    config: GptConfig
    remat: bool
    speeds: TargetSpeeds
    collectives: SearchedCollectives

    def __call__(self, op: int, samples: int) -> ModelWork:
        """Return the work for some samples on op devices."""
        layer_s, ends_s = self.collectives(op, samples)
        config, width = self.config, DTYPE_BYTES[self.config.compute_dtype]
        tokens = samples * config.sequence
        table = (config.vocabulary + num_positions(config)) * config.dim / op
        hidden = tokens * config.dim * width
        working = self._activations(tokens, op)
        return ModelWork(
            layer=PartWork(
                seconds=self._layer_s(op, samples) + layer_s,
                parameters=(12 * config.dim + 13) * config.dim / op,
                kept_bytes=hidden if self.remat else working,
                working_bytes=working if self.remat else 0.0,
            ),
            # The search does not say which of both ends communicates: half each.
            embed=PartWork(seconds=ends_s / 2, parameters=table),
            head=PartWork(
                seconds=self._head_flops(samples) / op / self._speed + ends_s / 2,
                parameters=config.vocabulary * config.dim / op,
                # Logits and their gradient in float32.
                working_bytes=8 * tokens * config.vocabulary / op,
            ),
        )

    @property
    def _speed(self) -> float:
        return self.speeds.products[self.config.compute_dtype]

    def _head_flops(self, samples: int) -> float:
        return 6.0 * samples * self.config.sequence * self.config.dim * self.config.vocabulary

    def _layer_s(self, op: int, samples: int) -> float:
        """Return the seconds of a layer's products and memory traffic."""
        config, number = self.config, self.config.num_layers
        flops = step_flops(config, batch=samples, remat=self.remat) - self._head_flops(samples)
        moved = [
            step_memory_bytes(config, batch=batch, op=op, remat=self.remat)
            for batch in (samples, 2 * samples)
        ]
        return (
            flops / number / op / self._speed
            + (moved[1] - moved[0]) / number / self.speeds.memory_bytes_per_s
        )

    def _activations(self, tokens: int, op: int) -> float:
        config = self.config
        scores = 5 * config.num_heads * config.sequence / config.dim / op
        # The source counts bytes for 16 bits.
        factor = DTYPE_BYTES[config.compute_dtype] / 2
        return factor * tokens * config.dim * (10 + 24 / op + scores)
