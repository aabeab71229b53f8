"""An outer loop in a checkpoint: names of tensors, keys of the metadata, and counters."""

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from jaxpipe.runtime.stage.optimizer_config import MOMENTS
from jaxpipe.runtime.train_snapshot import LOSS_SCALE, SKIPPED_STEPS

IN_SYNC, IN_FLIGHT = "outer_in_sync", "outer_in_flight"
"""Whether all parameters are the anchor, and the fragments whose sum is under way: what the step
alone does not say, if the run is extended later."""
SHARES: Final = "outer_shares"
"""The part of the batch of each island."""

MOMENTUM, PENDING = "momentum.", "pending."
SENT, LEAD, LEAD_MOMENTUM = "eager.sent.", "eager.lead.", "eager.momentum."
"""Of an island with eager updates."""
_PREFIXES = (MOMENTUM, PENDING, SENT, LEAD, LEAD_MOMENTUM)
COUNTERS: Final = "counters"
_MOMENTS = tuple(f"{name}." for name in MOMENTS)
_ISLAND = re.compile(r"island\.(\d+)\.(.*)")


def is_moment(name: str) -> bool:
    """Return whether a tensor is a moment of the inner optimizer.

    >>> is_moment("mu.blocks.0.mlp.up"), is_moment("blocks.0.mlp.up")
    (True, False)
    """
    return name.startswith(_MOMENTS)


def parameter_of(name: str) -> str:
    """Return the parameter to which a tensor of an outer loop belongs; other names as they are.

    >>> parameter_of("momentum.embed.tokens"), parameter_of("mu.embed.tokens")
    ('embed.tokens', 'mu.embed.tokens')
    """
    prefix = next((known for known in _PREFIXES if name.startswith(known)), "")
    return name.removeprefix(prefix)


def of_island(number: int, name: str) -> str:
    """Return the name of what an island has of its own.

    >>> of_island(1, "embed.tokens")
    'island.1.embed.tokens'
    """
    return f"island.{number}.{name}"


def split_island(name: str) -> tuple[int | None, str]:
    """Return the island of a tensor, None if all have it, and its name there.

    >>> split_island("island.1.embed.tokens"), split_island("embed.tokens")
    ((1, 'embed.tokens'), (None, 'embed.tokens'))
    """
    match = _ISLAND.fullmatch(name)
    return (None, name) if match is None else (int(match[1]), match[2])


def counters(metadata: Mapping[str, Any]) -> np.ndarray:
    """Return the loss scale and the skipped steps of an island's metadata as a tensor.

    Metadata of an import have neither.

    >>> counters({"loss_scale": {"scale": 8.0, "good_steps": 3}, "skipped_steps": 1})
    array([1., 8., 3., 1.])
    """
    scale = metadata.get(LOSS_SCALE)
    numbers = (0.0, 0.0) if scale is None else (scale["scale"], float(scale["good_steps"]))
    return np.array([float(scale is not None), *numbers, float(metadata.get(SKIPPED_STEPS, 0))])


def counted(tensor: np.ndarray) -> dict[str, Any]:
    """Return the metadata that `counters` has as a tensor.

    >>> counted(np.array([0.0, 0.0, 0.0, 2.0]))
    {'loss_scale': None, 'skipped_steps': 2}
    """
    is_scaled, scale, good_steps, skipped = tensor.tolist()
    loss_scale = {"scale": scale, "good_steps": int(good_steps)} if is_scaled else None
    return {LOSS_SCALE: loss_scale, SKIPPED_STEPS: int(skipped)}
