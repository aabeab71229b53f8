"""Noise on what was profiled, and what it costs: a search that believes wrong numbers.

Every number that is measured is multiplied by a factor from 1 - p to 1 + p, uniformly: the FLOPs
and the traffic of each operator and the speed of each collective. The number of devices is known.

Source: Zhang et al., "HiDup", SoCC 2022, section 6.11.
"""

from dataclasses import replace
from random import Random

from jaxpipe.baselines.autoshard.duplex.labelled_graph import LabelledGraph
from jaxpipe.baselines.autoshard.duplex.operator_cost import CostModel
from jaxpipe.errors import PlanError


def noisy_model(model: CostModel, *, amplitude: float, seed: int) -> CostModel:
    """Return a cost model with noise.

    Raises:
        PlanError: the amplitude is not from 0 to below 1.
    """
    if not 0 <= amplitude < 1:
        raise PlanError(f"`noise` must be at least 0 and below 1, is {amplitude}; 0.2 is 20 %")
    random = Random(seed)
    graph = _noisy_graph(model.graph, amplitude, random)
    return replace(model, graph=graph, profile=model.profile.noisy(amplitude, random))


def _noisy_graph(graph: LabelledGraph, amplitude: float, random: Random) -> LabelledGraph:
    def noisy(value: float) -> float:
        return value * (1 + random.uniform(-amplitude, amplitude))

    operators = tuple(
        replace(operator, flops=noisy(operator.flops), traffic_bytes=noisy(operator.traffic_bytes))
        for operator in graph.operators
    )
    return replace(graph, operators=operators)
