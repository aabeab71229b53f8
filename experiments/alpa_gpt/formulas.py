"""The bytes that Alpa's step holds of parameters, in closed form."""

from models import GptConfig
from models.alpa_gpt import num_parameters

GIB = 2**30


def state_gib(config: GptConfig, *, op: int) -> float:
    """Return GiB per device of state, gradients and the old parameters, all of them split over op.

    In float16, bytes for each parameter: itself 2, its master copy 4, Adam's two states 8, its
    gradient 2, and the old one while the new is made 2; in float32 4, 8, 4 and 4.

    >>> config = GptConfig(
    ...     num_layers=4, dim=4096, num_heads=32, sequence=1024, vocabulary=51200, tied=False,
    ...     compute_dtype="float16",
    ... )
    >>> print(f"{state_gib(config, op=1):.3f}")
    20.571
    """
    per_parameter = 18 if config.compute_dtype == "float16" else 20
    return per_parameter * num_parameters(config) / op / GIB
