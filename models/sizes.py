"""The limits of the sizes of a model, whatever its family: what no model has is refused at once.

Layers and heads are counted one by one in plans and checks, which a number of any size from a
stranger's file would keep busy for ever.
"""

from collections.abc import Iterable, Mapping
from typing import Final

_MOST_COUNTED: Final = 2**16
_COUNTED: Final = ("num_layers", "num_heads", "num_kv_heads", "experts", "experts_per_token")
_MOST: Final = 2**31 - 1
"""XLA numbers the elements of a dimension in 32 bits."""
_MOST_OF: Final[Mapping[str, float]] = {
    **dict.fromkeys(_COUNTED, _MOST_COUNTED),
    "logits_bytes": 2**63 - 1,
}


def check_sizes(model: object, names: Iterable[str], *, least: int) -> None:
    """Check that some sizes of a model are at least `least`, and at most what a model can have.

    >>> from types import SimpleNamespace
    >>> check_sizes(SimpleNamespace(num_layers=10**9), ["num_layers"], least=1)
    Traceback (most recent call last):
    ValueError: `num_layers` must be from 1 to 65,536, not 1000000000

    Raises:
        ValueError: one is not. It names the field, the limits and the value.
    """
    for name in names:
        value, most = getattr(model, name), _MOST_OF.get(name, _MOST)
        if not value >= least:
            raise ValueError(f"`{name}` must be at least {least}, not {value}")
        if value > most:
            raise ValueError(f"`{name}` must be from {least} to {most:,}, not {value}")
