"""Alpa's intra-operator pass: the fastest predicted strategy, by integer programming."""

from jaxpipe.baselines.autoshard.intra_op.machine import Machine
from jaxpipe.baselines.autoshard.intra_op.restrict import GradientReduction
from jaxpipe.baselines.autoshard.intra_op.strategy_cost import Memory
from jaxpipe.baselines.autoshard.intra_op.strategy_search import (
    Priced,
    SearchConfig,
    SearchedStrategy,
    find_strategy,
    price_strategy,
)

__all__ = [
    "GradientReduction",
    "Machine",
    "Memory",
    "Priced",
    "SearchConfig",
    "SearchedStrategy",
    "find_strategy",
    "price_strategy",
]
