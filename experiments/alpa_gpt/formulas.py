"""The bytes per parameter of Alpa's step, in closed form."""

from jaxpipe.baselines.gpt.alpa_gpt import num_parameters
from jaxpipe.models import GptConfig

GIB = 2**30


def state_gib(config: GptConfig, *, op: int) -> float:
    """Return GiB per device of state, gradients and old parameters, all sharded over op.

    In float16, bytes per parameter: parameter 2, master copy 4, Adam's two moments 8, gradient 2,
    and old parameter during the update 2; in float32 4, 8, 4 and 4.

    >>> config = GptConfig(
    ...     num_layers=4, dim=4096, num_heads=32, sequence=1024, vocabulary=51200, tied=False,
    ...     compute_dtype="float16",
    ... )
    >>> print(f"{state_gib(config, op=1):.3f}")
    20.571
    """
    per_parameter = 18 if config.compute_dtype == "float16" else 20
    return per_parameter * num_parameters(config) / op / GIB
