"""The section `lora` of the configuration."""

from dataclasses import dataclass
from typing import Annotated

from jaxpipe.ranges import Range, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters: kernels W become W + (alpha / rank) A B, and only A and B are trained.

    B starts at zero, so the first step computes the loss of the model that is tuned. Source: Hu et
    al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1.
    """

    rank: Annotated[int, Range(least=0, most=2**16)] = 0
    """Columns of A and rows of B; 0 trains no adapters."""
    alpha: Annotated[float, Range(above=0, most=1e38, why="adapters are float32")] = 16.0
    """Factor of the adapters, divided by `rank`."""
    targets: tuple[str, ...] = ("attention.*",)
    """Patterns of the products of each layer that have adapters, such as `attention.*`, `query` or
    `mlp.up`: each is compared with the name of the product, and with what follows its dots."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.targets or not all(self.targets):
            raise ValueError("`targets` must have at least one pattern, and none that is empty")

    @property
    def is_on(self) -> bool:
        """Whether adapters are trained."""
        return self.rank > 0

    @property
    def scale(self) -> float:
        """The factor of the products A B."""
        return self.alpha / self.rank
