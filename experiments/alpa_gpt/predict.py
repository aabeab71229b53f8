"""Predict the seconds of a step on V100s from two fitted constants: a speed, and an NVLink.

    step = FLOP / speed  +  bytes through memory / 900 GB/s  +  bytes on a ring / (links * NVLink)

FLOP are Alpa's, a device's share. Through memory go, besides what products read, the optimizer
(28 bytes a parameter in float16: gradient, master copy and Adam's states in; the same and the
parameter out) and what is computed element by element: a pass of 2 bytes each over 6 widths a layer
that all devices of op repeat, and over 50 that they share, once forward, twice backward, once more
where it is computed again. Nothing overlaps, as in the scheduled HLO of Alpa's day.

On a ring of p devices a collective of n bytes sends n (p - 1) / p, an all-reduce twice that. How
many NVLinks a GPU has into a group of p is that of the machine (`cases.toml`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from experiments.alpa_gpt.compiled import config_of
from experiments.alpa_gpt.published import Case
from models.alpa_gpt import num_parameters, step_flops

_ALIKE, _SHARED = 6, 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one device does in a step: FLOP, seconds in memory, bytes over one NVLink."""

    flops: float
    memory_s: float
    link_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The two constants: FLOP/s of a V100, bytes/s of an NVLink."""

    speed: float
    link: float


def work_of(case: Case, compiled: Mapping[str, Any], machine: Mapping[str, Any]) -> Work:
    """Return the work of a case, with the collectives that were compiled."""
    config = config_of(case)
    return Work(
        flops=step_flops(config, batch=case.batch, remat=case.remat) / (case.dp * case.op),
        memory_s=_memory_bytes(case) / machine["memory_bandwidth"],
        link_bytes=sum(
            ring_bytes / machine["links"][str(group)]
            for ring_bytes, group in compiled["collectives"]
            if group > 1
        ),
    )


def predicted_s(work: Work, fitted: Fitted) -> float:
    """Return the seconds of a step."""
    return work.flops / fitted.speed + work.memory_s + work.link_bytes / fitted.link


def fit(works: Sequence[Work], seconds: Sequence[float]) -> Fitted:
    """Return the constants of the least squares of the logarithms.

    >>> works = [Work(flops=f, memory_s=0.0, link_bytes=b) for f, b in ((4e12, 1e9), (1e12, 4e9))]
    >>> found = fit(works, [predicted_s(each, Fitted(speed=8e13, link=2e10)) for each in works])
    >>> print(f"{found.speed:.2g} {found.link:.2g}")
    8e+13 2e+10
    """

    def loss(logs: np.ndarray) -> float:
        fitted = Fitted(speed=math.exp(logs[0]), link=math.exp(logs[1]))
        pairs = zip(works, seconds, strict=True)
        return sum(math.log(predicted_s(work, fitted) / real) ** 2 for work, real in pairs)

    start = np.log([8e13, 2e10])
    found = minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-12})
    return Fitted(speed=math.exp(found.x[0]), link=math.exp(found.x[1]))


def _memory_bytes(case: Case) -> float:
    config = config_of(case)
    width = 2 if case.dtype == "float16" else 4
    params = num_parameters(config) / case.op
    # Gradient and state in, state out, and in float16 the parameter besides its master copy.
    optimizer = 28 * params
    if case.reduce_scatter:
        optimizer = optimizer / case.dp + 2 * width * params
    passes = 3 + case.remat
    widths = (_ALIKE + _SHARED / case.op) * passes * width
    tokens = case.batch / case.dp * config.sequence
    return optimizer + tokens * config.dim * config.num_layers * widths
