"""Optimizers by name, each with its facts. No jax here: the planner reads them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    """The facts of an optimizer.

    `build` names the function ("module:function") that returns it from the section `optimizer`, the
    learning rate and the mask of the parameters with weight decay. `num_moments` is the number of
    values that it keeps for each parameter.
    """

    build: str
    num_moments: int


_BUILDERS = "jaxpipe.runtime.stage.optimizer"


class OptimizerName(StrEnum):
    """The rule that turns gradients into updates; all decay weights apart from them."""

    facts: OptimizerFacts

    def __new__(cls, name: str, facts: OptimizerFacts) -> Self:
        """Return the member `name`, which is a string and carries its facts."""
        optimizer = str.__new__(cls, name)
        optimizer._value_ = name
        optimizer.facts = facts
        return optimizer

    ADAMW = "adamw", OptimizerFacts(build=f"{_BUILDERS}:adamw", num_moments=2)
    """AdamW: two moments. Source: Loshchilov and Hutter 2019, "Decoupled weight decay"."""
    LION = "lion", OptimizerFacts(build=f"{_BUILDERS}:lion", num_moments=1)
    """Lion: the sign of a momentum; wants a learning rate 3 to 10 times smaller, and `beta2` 0.99.
    Source: Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"."""
    SGD = "sgd", OptimizerFacts(build=f"{_BUILDERS}:sgd", num_moments=1)
    """Gradient descent with the momentum `beta1`."""
    MUON = "muon", OptimizerFacts(build=f"{_BUILDERS}:muon", num_moments=2)
    """Muon: matrices of layers move along an orthogonalised momentum, each in its stage; the
    embedding, the head, norms and biases by AdamW with a Nesterov momentum. Source: Jordan et al.
    2024, "Muon: an optimizer for hidden layers in neural networks"."""
    ADAFACTOR = "adafactor", OptimizerFacts(build=f"{_BUILDERS}:adafactor", num_moments=0)
    """Adafactor: of the second moment of a matrix, the means of rows and columns alone, and no
    first moment; updates are relative to the root mean square of each tensor, and want a learning
    rate near 1e-2. `beta1`, `beta2` and `epsilon` have no effect. Source: Shazeer and Stern 2018,
    "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost"."""
