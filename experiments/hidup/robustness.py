"""Noise on profiles (section VI.E of the artifact) and search seconds (VI.F)."""

import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import mean

from experiments.hidup.workloads import Bar, Constants, workload
from experiments.table import Row
from jaxpipe.baselines.autoshard.duplex import (
    CostModel,
    published_profiles,
    search,
    step_s,
    transformer_graph,
)
from jaxpipe.baselines.autoshard.duplex.noise import noisy_model
from jaxpipe.baselines.autoshard.duplex.routing_load import RoutingGroup
from jaxpipe.baselines.systems import System

_REPEATS = 10
_CONDITIONS = ((6, "8 GPUs"), (7, "8 GPUs"), (8, "20 Gbps"))
_LAYERS = (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24)


def noise_rows(constants: Constants) -> Iterator[Row]:
    """Yield the step time of what a misled search chooses, over that of the best strategy."""
    for figure, condition in _CONDITIONS:
        model = _model(figure, condition, constants)
        best = search(model).seconds
        for percent in (20, 50, 80):
            ratios = [
                _chosen_s(noisy_model(model, amplitude=percent / 100, seed=seed), model) / best
                for seed in range(_REPEATS)
            ]
            yield _row(figure, condition, f"{percent} % random", ratios)
        for percent in (20, 50, -20, -50):
            wrong = replace(model, profile=model.profile.scaled(1 + percent / 100))
            yield _row(figure, condition, f"{percent:+} % links", [_chosen_s(wrong, model) / best])


def _model(figure: int, condition: str, constants: Constants) -> CostModel:
    bar = Bar(figure=figure, condition=condition, model="bert-sgmoe", system=System.DUPLEX)
    return workload(bar, constants).model(RoutingGroup.SEQUENCE, halves=2)


def _chosen_s(believed: CostModel, model: CostModel) -> float:
    return step_s(model, search(believed).strategy)


def _row(figure: int, condition: str, noise: str, ratios: list[float]) -> Row:
    return {
        "cluster of figure": figure,
        "condition": condition,
        "noise": noise,
        "mean": f"{mean(ratios):.1%}",
        "worst": f"{max(ratios):.1%}",
        "searches": len(ratios),
    }


def search_rows(constants: Constants) -> Iterator[Row]:
    """Yield search seconds, measured: by layers with 4 devices, by devices with 6 layers."""
    published = dict(zip(_LAYERS, _PUBLISHED_S, strict=True))
    for layers in _LAYERS:
        yield _searched(layers, 4, constants) | {"published s (Rust)": published[layers]}
    for devices in (1, 2, 4, 8, 16, 32):
        yield _searched(6, devices, constants) | {"published s (Rust)": "0.365 to 0.428"}


_PUBLISHED_S = (
    0.042,
    0.123,
    0.216,
    0.321,
    0.431,
    0.542,
    0.647,
    0.767,
    0.959,
    1.118,
    1.163,
    1.288,
    1.361,
)


def _searched(layers: int, devices: int, constants: Constants) -> dict[str, str | int | float]:
    bar = Bar(figure=7, condition="4 GPUs", model="bert-sgmoe", system=System.DUPLEX)
    work = workload(bar, constants)
    sizes = replace(work.sizes, num_layers=layers, experts=work.load.sizes(RoutingGroup.SEQUENCE))
    # Experts for 32 devices, and as many samples: only the number of devices changes.
    experts = replace(sizes.experts, num_experts=32) if sizes.experts else None
    graph = transformer_graph(
        replace(sizes, experts=experts, vocabulary=33280, outputs=33280), batch=32 * 32
    )
    profile = replace(published_profiles()["v100-1x4"], devices=devices)
    model = CostModel(graph=graph, device=work.device, profile=profile)
    cpu = time.process_time()
    found = search(model)
    return {
        "layers": layers,
        "devices": devices,
        "operators": len(graph.operators),
        "search s": found.search_s,
        "CPU s": time.process_time() - cpu,
    }
