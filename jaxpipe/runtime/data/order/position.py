"""Which samples a run has read, and whether it reads on in the same order after a stop.

The position is counted in samples, so that another `train.batch` neither skips nor repeats any::

    steps of batch 4   │0 1 2 3│4 5 6 7│ stop, resume with batch 2 │8 9│10 11│ ...

A checkpoint names the order: what decides which sample has which number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxpipe.errors import CheckpointError

ORDER, SAMPLES = "order", "samples"
"""The keys in the metadata of a checkpoint: of the order, and of the number of samples read."""

_MOST_SAMPLES = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The number of the first sample of a step, from which all later steps follow."""

    step: int = 0
    sample: int = 0

    def first_sample(self, step: int, *, batch: int) -> int:
        """Return the number of the first sample of a step, counted over all steps.

        >>> Position(step=2, sample=8).first_sample(5, batch=2)
        14
        """
        return self.sample + (step - self.step) * batch


def order_of(
    *, seed: int, sequence: int, pack: bool, checksums: Sequence[str], weights: Sequence[float]
) -> dict[str, Any]:
    """Return the order as a checkpoint names it, by field; `checksums` are those of the datasets.

    >>> order_of(seed=1, sequence=8, pack=False, checksums=["a"], weights=[3.0])["data.sources"]
    [['a', 1.0]]
    """
    total = sum(weights)
    sources = zip(checksums, weights, strict=True)
    return {
        "run.seed": seed,
        "train.sequence": sequence,
        "data.pack": pack,
        "data.sources": [[checksum, weight / total] for checksum, weight in sources],
    }


def changes_of_order(
    metadata: Mapping[str, Any], order: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Return the fields in which an order is not that of a checkpoint: old value, new value.

    An import has read nothing, and an older version named no datasets.
    """
    saved = metadata.get(ORDER)
    if not isinstance(saved, dict):
        saved = _older_order(metadata)
    return {
        field: (saved[field], value)
        for field, value in order.items()
        if field in saved and saved[field] != value
    }


def position_after(metadata: Mapping[str, Any], *, step: int, order: Mapping[str, Any]) -> Position:
    """Return where a run reads on after the `step` of a checkpoint: at 0 in another order.

    >>> position_after({SAMPLES: 12}, step=3, order={})
    Position(step=3, sample=12)

    Raises:
        CheckpointError: the metadata have no such number.
    """
    if changes_of_order(metadata, order):
        return Position(step=step)
    batch = _section(metadata, "train").get("batch", 0)
    sample = metadata.get(SAMPLES, step * batch if isinstance(batch, int) else None)
    if not isinstance(sample, int) or not 0 <= sample < _MOST_SAMPLES:
        raise CheckpointError(
            f"`{SAMPLES}` of the checkpoint of step {step} must be a number of samples, not "
            f"{sample!r:.80}; resume from an older step"
        )
    return Position(step=step, sample=sample)


def _older_order(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the order of a checkpoint of an older version, as far as its configuration says."""
    run, train, model, data = (
        _section(metadata, name) for name in ("run", "train", "model", "data")
    )
    known = {
        "run.seed": run.get("seed"),
        "train.sequence": train.get("sequence") or model.get("sequence"),
        "data.pack": data.get("pack"),
    }
    return {field: value for field, value in known.items() if value is not None}


def _section(metadata: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    config = metadata.get("config")
    section = config.get(name) if isinstance(config, dict) else None
    return section if isinstance(section, dict) else {}
