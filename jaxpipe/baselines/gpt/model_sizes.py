"""The sizes of a preset as the duplex search takes them, which knows no models."""

from jaxpipe.baselines.autoshard.duplex import (
    ExpertSizes,
    LabelledGraph,
    TransformerSizes,
    transformer_graph,
)
from jaxpipe.models import GptConfig
from jaxpipe.models.gpt_config import DTYPE_BYTES


def duplex_graph(config: GptConfig, *, batch: int, dtype: str) -> LabelledGraph:
    """Return the operators of a step of a model, in a format of computation."""
    return transformer_graph(
        transformer_sizes(config), batch=batch, bytes_per_element=DTYPE_BYTES[dtype]
    )


def transformer_sizes(config: GptConfig) -> TransformerSizes:
    """Return the sizes of a model, with the slots of its routing by sequence.

    >>> config = GptConfig(
    ...     num_layers=2, dim=64, num_heads=4, sequence=32, vocabulary=256, experts=8
    ... )
    >>> transformer_sizes(config).experts
    ExpertSizes(num_experts=8, slots=5, mask_slots=40, fullest=1.0)
    """
    routing = config.routing
    experts = None
    if routing is not None:
        slots = routing.capacity(config.sequence)
        experts = ExpertSizes(
            num_experts=config.experts, slots=slots, mask_slots=config.experts * slots
        )
    return TransformerSizes(
        num_layers=config.depth,
        dim=config.dim,
        num_heads=config.num_heads,
        sequence=config.sequence,
        vocabulary=0 if config.patch else config.vocabulary,
        outputs=config.classes or config.vocabulary,
        reads_first=config.classes > 0,
        patch_values=config.patch**2 * config.channels,
        experts=experts,
    )
