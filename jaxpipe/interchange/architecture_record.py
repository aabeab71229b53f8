"""The record of an architecture of `transformers`, and what a missing field stands for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final


class _Default:
    """A value that depends on other fields."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


STATED: Final = _Default("STATED")
"""There is no default: the field must be stated."""
HEADS: Final = _Default("HEADS")
"""`num_attention_heads`."""
WIDTH: Final = _Default("WIDTH")
"""`hidden_size` over `num_attention_heads`."""

ROPE: Final = frozenset(("rope_theta", "rope_scaling", "rope_parameters"))
ROPE_KINDS: Final = ("default", "linear", "llama3", "yarn", "dynamic")


class Groups(Enum):
    """In what full layers differ from others; the fields that say so, beside `layer_types`."""

    WINDOWS = ("sliding_window_pattern", "rope_local_base_freq")
    """Their window, and the base of rotary positions."""
    PAIRS = ()
    """Their window; by default they are every other layer."""
    LATER = ("use_sliding_window", "max_window_layers")
    """Their window; by default they are the first layers."""
    POSITIONS = ("no_rope_layers", "no_rope_layer_interval")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """An architecture of `transformers`.

    Args:
        kind: the value of `model_type`.
        model: the class of its language model.
        computed: the fields that describe it, with the value of a missing one.
        also: other spellings of some of them.
        null: the value of those that are null; another null is refused.
        only: the supported values of further fields; the first is the default.
        inert: further fields that change nothing.
        always: the fields of a `LlamaConfig` that all its models have.
        rope_kinds: the scalings of rotary positions that jaxpipe computes.
        rope_also: other names of scalings.
        rope_base: the base of a missing `rope_theta`.
        groups: in what layers differ, if they do.
        is_partly_turned: whether `partial_rotary_factor` is computed.
        is_fused: whether queries, keys and values are one tensor, and gate and up another.
        experts: the names in a layer of the router and of the kernels of an expert, by ours.
    """

    kind: str
    model: str
    computed: Mapping[str, Any]
    also: Mapping[str, str] = field(default_factory=dict)
    null: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    inert: frozenset[str] = frozenset()
    always: Mapping[str, Any] = field(default_factory=dict)
    rope_kinds: tuple[str, ...] = ROPE_KINDS
    rope_also: Mapping[str, str] = field(default_factory=dict)
    rope_base: float = 10_000.0
    groups: Groups | None = None
    is_partly_turned: bool = False
    is_fused: bool = False
    experts: Mapping[str, str] = field(default_factory=dict)

    @property
    def known(self) -> frozenset[str]:
        """The names of the fields that are computed, checked or change nothing, beside `INERT`."""
        names = {"model_type", "layer_types", "partial_rotary_factor", *self.computed, *self.only}
        names |= self.also.keys()
        groups = () if self.groups is None else self.groups.value
        return ROPE | names | self.inert | frozenset(groups)
