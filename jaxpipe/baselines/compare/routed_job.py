"""The job of a system for mixtures of experts: the same model, routed as the system routes.

::

    gshard          a sequence shares the slots of each expert         as configured
    deepspeed-moe   all tokens of a rank share them                    drops other tokens
    fastmoe         a slot for every token: nothing is dropped         all-to-alls padded to that
"""

from dataclasses import replace

from jaxpipe.baselines.systems import System
from jaxpipe.models import GptConfig
from jaxpipe.models.gpt import Gpt
from jaxpipe.runtime.job import Job


def routed(system: System, job: Job) -> Job:
    """Return the job with the routing of a system."""
    changed = _changed(system, config_of(job), num_ranks=job.plan.num_ranks)
    return job if changed is None else replace(job, model=Gpt(changed))


def config_of(job: Job) -> GptConfig:
    """Return the sizes of a job's model."""
    assert isinstance(job.model, Gpt), job.model
    return job.model.config


def _changed(system: System, config: GptConfig, *, num_ranks: int) -> GptConfig | None:
    if system is System.DEEPSPEED_MOE:
        return replace(config, routing_groups=num_ranks)
    if system is System.FASTMOE:
        # As many slots as tokens, in each expert.
        return replace(config, capacity_factor=float(config.experts))
    return None
