"""The record of a family of models: its configuration, its costs and its architecture.

A family is one record. Whoever plans, trains or exports a model finds it by the configuration
(`jaxpipe.models.catalogue.family_of`), and asks for no family by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:  # it imports jax, for which planners need not wait
    from jaxpipe.models.transformer import Transformer


@runtime_checkable
class ModelConfig(Protocol):
    """The fields that all configurations of models have; each is a frozen, hashable dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def num_layers(self) -> int:
        """The number of layers between the embedding and the head [layers]."""
        ...

    @property
    def dim(self) -> int:
        """The width of the activation between two layers."""
        ...

    @property
    def num_heads(self) -> int:
        """The equal parts of a layer that tensor parallelism can give to devices; 1 for none."""
        ...

    @property
    def sequence(self) -> int:
        """The longest sequence [tokens]."""
        ...

    @property
    def vocabulary(self) -> int:
        """The number of different tokens [tokens]."""
        ...

    @property
    def tied(self) -> bool:
        """Whether the head multiplies by the token embedding."""
        ...

    @property
    def param_dtype(self) -> str:
        """The format of fresh parameters, one of `DTYPE_BYTES`."""
        ...

    @property
    def compute_dtype(self) -> str:
        """The format of activations, one of `DTYPE_BYTES`."""
        ...

    @property
    def classes(self) -> int:
        """The number of labels of a sample; 0 if the targets are the next tokens."""
        ...

    @property
    def picture(self) -> tuple[int, int, int] | None:
        """The shape of an input in pixels; None if inputs are tokens."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ByRemat:
    """One cost under each policy of rematerialisation of a layer.

    Args:
        none: keep what the layer's own checkpoints leave.
        dots: keep the layer's input, the products with weights, and of attention the output and
            the statistics: `dots_with_no_batch_dims_saveable` or the name "attention".
        full: keep the layer's input.
    """

    none: int
    dots: int
    full: int

    def over(self, num_parts: int) -> "ByRemat":
        """Return the cost of one of equal parts."""
        return ByRemat(
            none=self.none // num_parts, dots=self.dots // num_parts, full=self.full // num_parts
        )


@runtime_checkable
class FamilyCosts(Protocol):
    """The closed forms of a family, without jax; a module of functions satisfies it."""

    def layer_forward_flops(self, config: Any, /, *, batch: int, sequence: int) -> int:
        """Return the FLOPs of one layer's forward.

        Where layers differ, `config` has `of_layer`, whose result these functions are given.
        """
        ...

    def layer_backward_flops(self, config: Any, /, *, batch: int, sequence: int) -> ByRemat:
        """Return the FLOPs of one layer's backward, with recomputation."""
        ...

    def head_forward_flops(self, config: Any, /, *, batch: int, sequence: int) -> int:
        """Return the FLOPs of the head's forward."""
        ...

    def parameters_of_part(
        self, config: Any, /, *, layers: int, embed: bool, head: bool, tensor: int
    ) -> int:
        """Return the parameters that one of `tensor` devices holds of a stage.

        A stage with a tied head and no embedding holds a copy of the token table.
        """
        ...

    def layer_residual_bytes_of_part(
        self, config: Any, /, *, batch: int, sequence: int, tensor: int, in_parts: bool = False
    ) -> ByRemat:
        """Return the bytes that one of `tensor` devices keeps of a layer for its backward.

        With sequence parallelism, sequences are `in_parts` between products.
        """
        ...


Build: TypeAlias = "Callable[[Any], Transformer]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of models.

    Args:
        name: the value of `model.family`; that of a GPT is left out.
        config: the type of the section `[model]`, a frozen dataclass that satisfies `ModelConfig`.
            It has the field `family: Literal[name] = name`, but for a GPT.
        costs: the closed forms for planner, memory checks and MFU.
        build: takes the configuration and returns the model; imports jax when it is called.
        heads: the fields of the configuration that `mesh.tensor` must divide.
    """

    name: str
    config: type
    costs: FamilyCosts
    build: Build
    heads: tuple[str, ...] = ("num_heads",)
