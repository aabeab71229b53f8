"""The memory of a rank that trains a part of its parameters."""

from dataclasses import dataclass, replace

from jaxpipe.config import Config, tuned_model_from
from jaxpipe.finetune.trained_parameters import PartCounts, all_parameters, trained_parameters
from jaxpipe.models import DTYPE_BYTES
from jaxpipe.plan import Pipeline
from jaxpipe.plan.cost import StageMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedMemory:
    """Numbers of parameters without adapters, with them, and of those that are trained.

    `copy` is the size of the parameters that layers read, relative to those that are kept: of a
    model with adapters they are an array of their own, with merged kernels. 0 for none.
    """

    base: PartCounts
    all: PartCounts
    trained: PartCounts
    tied: bool
    copy: float

    def of_rank(
        self, needs: StageMemory, pipeline: Pipeline, number: int, *, num_parameters: int
    ) -> StageMemory:
        """Return the memory of a rank, given that of training `num_parameters` without adapters."""
        base, every, trained = (
            sum(
                counts.of_stage(
                    layers=pipeline.cut[stage],
                    embed=stage == 0,
                    head=stage == pipeline.num_stages - 1,
                    tied=self.tied,
                )
                for stage in pipeline.stages(number)
            )
            for counts in (self.base, self.all, self.trained)
        )
        parameters = needs.parameters * (1 + (every - base) / num_parameters)
        return replace(
            needs,
            parameters=round(parameters),
            gradients=round(needs.gradients * trained / num_parameters),
            optimizer=round(needs.optimizer * trained / num_parameters),
            packed=round(needs.packed * trained / num_parameters),
            copies=round(parameters * self.copy) if self.copy else needs.copies,
        )


def tuned_memory(config: Config) -> TunedMemory:
    """Return what the memory of a run with adapters or frozen parameters depends on.

    Raises:
        ConfigError: a pattern of `lora.targets` or `train.frozen` matches nothing.
    """
    from jaxpipe.models import build_model

    model, sizes = tuned_model_from(config), config.model
    ratio = DTYPE_BYTES[sizes.compute_dtype] / DTYPE_BYTES[sizes.param_dtype]
    return TunedMemory(
        base=all_parameters(build_model(sizes)),
        all=all_parameters(model),
        trained=trained_parameters(model),
        tied=sizes.tied,
        copy=ratio if config.lora.is_on else 0.0,
    )
