"""The section `[outer]` of a configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

import msgspec

from jaxpipe.collective import CodecKind
from jaxpipe.errors import CheckpointError
from jaxpipe.outer.fragment_timetable import check_timetable
from jaxpipe.ranges import Range, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterConfig:
    """The outer loop: islands of replicas train apart, and take one outer step together at times.

    Within an island everything is as without this section: gradients are all-reduced in each step.
    `train.batch` is that of all islands together. The inner learning rate, its warm-up and the
    moments belong to each island, and continue over outer steps.
    """

    islands: Annotated[int, Range(least=0)] = 0
    """Number of islands, groups of consecutive replicas of equal number [islands]; 0 turns the
    outer loop off, 1 is a single island that follows the outer optimizer."""
    every: Annotated[int, Range(least=1)] = 30
    """Inner steps from one outer step to the next, H [steps]; divides `train.steps`."""
    learning_rate: Annotated[float, Range(above=0, most=1000)] = 0.7
    """Learning rate of the outer optimizer, eta. Published: 0.7, or tuned on a small model 0.4 for
    one island, 0.6 for two or four, 0.8 for eight."""
    momentum: Annotated[float, Range(least=0, below=1)] = 0.9
    """Nesterov momentum of the outer optimizer, mu; 0 is plain SGD."""
    fragments: Annotated[int, Range(least=1)] = 1
    """Parts of the parameters that take their outer steps in turn; divides `every`. The first has
    embeddings and head, each of the others layers at equal distances."""
    delay: Annotated[int, Range(least=0)] = 0
    """Inner steps for which the all-reduce of a fragment may overlap with training, tau [steps];
    below `every` / `fragments`."""
    local_fraction: Annotated[float, Range(least=0, below=1)] = 0.0
    """Fraction of its own parameters that an island keeps when new ones arrive, alpha; published
    with a delay: 0.5."""
    eager: bool = False
    """Eager updates (arXiv 2502.12996): the all-reduce of a fragment may take until its next one.
    An island moves by its own outer gradient at once, and by those of the others then. Published
    with an outer learning rate of 0.4; without `delay` and `local_fraction`."""
    codec: CodecKind = CodecKind.NONE
    """Codec of outer gradients between islands. `top_k` feeds its residuals back into the next
    outer step, and checkpoints contain them."""
    top_k_fraction: Annotated[float, Range(above=0, most=1)] = 0.01
    """Fraction of the values that `top_k` sends, the largest ones."""

    def __post_init__(self) -> None:
        self._check_given()
        check_ranges(self)
        check_timetable(every=self.every, num_fragments=self.fragments, delay=self.delay)

    @property
    def is_on(self) -> bool:
        """Whether there is an outer loop."""
        return self.islands > 0

    @property
    def overlap(self) -> int:
        """The inner steps for which the all-reduce of a fragment may overlap with training."""
        return self.every if self.eager else self.delay

    @property
    def feeds_back(self) -> bool:
        """Whether the codec adds its residuals to the next outer step (error feedback)."""
        return self.codec.facts.needs_feedback

    def _check_given(self) -> None:
        changed = [
            field.name for field in fields(self) if getattr(self, field.name) != field.default
        ]
        if self.islands == 0 and changed:
            raise ValueError(
                f"`{changed[0]}` ({getattr(self, changed[0])}) needs islands, and `islands` is 0; "
                f"set `islands`, or leave out `{changed[0]}`"
            )


def saved_outer(metadata: Mapping[str, Any]) -> OuterConfig:
    """Return the section `[outer]` of the run that has saved a checkpoint with these metadata.

    >>> saved_outer({}).islands
    0

    Raises:
        CheckpointError: it is none.
    """
    tree = metadata.get("config")
    values = tree.get("outer", {}) if isinstance(tree, dict) else {}
    try:
        return msgspec.convert(values, OuterConfig)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"`outer` cannot be read from the configuration of the checkpoint: {error}; resume "
            "from an older step"
        ) from error
