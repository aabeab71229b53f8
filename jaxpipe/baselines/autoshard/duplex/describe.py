"""A found strategy as JSON and as text: stages, collectives, and where parameters are stored.

::

    {"format": 1, "search": "duplex", "devices": 8, "seconds": 0.28, "memory_bytes": 4.1e9,
     "stages": [{"compute_s": 0.01, "forward_s": 0.002, ...}, ...],
     "operators": [{"name": "layer1.up", "stage": 3, "forms": "S0,S0->S0",
                    "converted": {"layer1.dispatch": "S1->S0"},
                    "parameters": {"layer1.up.kernel": "S0"}}, ...]}
"""

from collections import Counter
from dataclasses import asdict

import msgspec

from jaxpipe.baselines.autoshard.duplex.decision import OperatorDecision
from jaxpipe.baselines.autoshard.duplex.duplex_search import DuplexResult
from jaxpipe.baselines.autoshard.duplex.form import FULL, backward_conversion, conversion
from jaxpipe.baselines.autoshard.duplex.found_file import FORMAT, SEARCH
from jaxpipe.baselines.autoshard.duplex.operator_cost import CostModel
from jaxpipe.baselines.autoshard.duplex.stage_seconds import costs_of, stages
from jaxpipe.collective.kinds import CollectiveKind


def strategy_json(model: CostModel, result: DuplexResult) -> str:
    """Return a strategy as JSON."""
    stage, operators = -1, []
    for operator, decision in zip(model.graph.operators, result.strategy, strict=True):
        stage += decision.starts_stage
        operators.append(
            {
                "name": operator.name,
                "stage": stage,
                "forms": str(decision.signature),
                "converted": {
                    conversion.tensor: f"{conversion.source}->{conversion.target}"
                    for conversion in decision.conversions
                },
                "parameters": {
                    placement.parameter: str(placement.stored) for placement in decision.placements
                },
            }
        )
    content = {
        "format": FORMAT,
        "search": SEARCH,
        "devices": model.profile.devices,
        "seconds": result.seconds,
        "memory_bytes": result.memory_bytes,
        "stages": [
            asdict(stage_costs)
            for stage_costs in stages(costs_of(model, result.strategy), result.strategy)
        ],
        "operators": operators,
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


def count_step_collectives(strategy: tuple[OperatorDecision, ...]) -> Counter[CollectiveKind]:
    """Return the collectives of a step: of activations in both halves, of parameters once."""
    counts: Counter[CollectiveKind] = Counter()
    for decision in strategy:
        for converted in decision.conversions:
            for kind in (
                conversion(converted.source, converted.target),
                backward_conversion(converted.source, converted.target),
            ):
                if kind is not None:
                    counts[kind] += 2
        for converted in decision.placements:
            if converted.used != FULL:
                continue
            if converted.stored == FULL:
                counts[CollectiveKind.ALL_REDUCE] += 1
            else:
                counts[CollectiveKind.ALL_GATHER] += 1
                counts[CollectiveKind.REDUCE_SCATTER] += 1
    return counts


def draw_found(model: CostModel, result: DuplexResult) -> str:
    """Return a line for each operator that begins a stage, converts, or reads parameters."""
    lines = []
    for operator, decision in zip(model.graph.operators, result.strategy, strict=True):
        moved = [
            f"{conversion(converted.source, converted.target) or 'slice'} {converted.tensor} "
            f"{converted.source}->{converted.target}"
            for converted in decision.conversions
        ]
        stored = [
            f"parameter {placement.stored}->{placement.used}" for placement in decision.placements
        ]
        mark = "-" if decision.starts_stage else " "
        what = "; ".join([*moved, *stored])
        lines.append(f"{mark} {operator.name:<18} {decision.signature!s:<16} {what}".rstrip())
    return "\n".join(lines)
