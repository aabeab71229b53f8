"""What connects a model's traced step with the operators of a duplex graph: names.

::

    graph        layer1.up  "ebcd,edf->ebcf"
    scope        with jax.named_scope("layer0"): ... named_scope("sparse"): ... named_scope("up")
    parameter    blocks.0.sparse.moe.up: the dims of its array are e, d, f
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterLabels:
    """A parameter of an operator: a letter for each dim of its array; "." where it has no label."""

    operator: str
    labels: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNames:
    """The names of a model.

    Args:
        scopes: of each operator with products or look-ups, the words of its scope, outermost first.
        parameters: by the end of their path, such as "blocks.0.mlp.up.kernel"; all others are
            replicated.
        batch: the arguments whose first dim are examples.
    """

    scopes: Mapping[str, tuple[str, ...]]
    parameters: Mapping[str, ParameterLabels]
    batch: tuple[str, ...] = ("tokens", "targets")

    def operator(self, scope: str) -> str | None:
        """Return the operator to which an equation in a scope belongs, of its backward as well.

        >>> names = ModelNames(scopes={"layer1.up": ("layer0", "sparse", "up")}, parameters={})
        >>> names.operator("transpose(jvp(layer0))/sparse/up"), names.operator("jvp(layer0)/dense")
        ('layer1.up', None)
        """
        words = _WORD.findall(scope)
        return next((name for name, path in self.scopes.items() if _within(path, words)), None)

    def parameter(self, path: str) -> ParameterLabels | None:
        """Return the labels of a parameter, or of what an optimizer keeps for it.

        >>> up = ParameterLabels(operator="layer0.up", labels="df")
        >>> names = ModelNames(scopes={}, parameters={"0.up": up})
        >>> names.parameter("state.optimizer.mu.blocks.0.up") is up, names.parameter("state.up")
        (True, None)
        """
        words = path.split(".")
        ends = (".".join(words[start:]) for start in range(len(words)))
        return next((self.parameters[end] for end in ends if end in self.parameters), None)


def _within(path: tuple[str, ...], words: list[str]) -> bool:
    """Return whether the words of a path stand among the words, in this order."""
    rest = iter(words)
    return all(word in rest for word in path)
