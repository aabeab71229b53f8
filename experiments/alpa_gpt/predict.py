"""Predict the seconds of a step on V100s from two fitted constants: GPU speed and NVLink bandwidth.

    step = FLOP / speed  +  bytes through memory / 900 GB/s  +  bytes on a ring / (links * NVLink)

FLOP and bytes through memory are Alpa's, per device (`jaxpipe.baselines.gpt.alpa_gpt`). Nothing
overlaps, as in the scheduled HLO of Alpa's time. On a ring of p devices a collective of n bytes
sends n (p - 1) / p, an all-reduce twice that. The number of NVLinks of a GPU into a group of p and
the memory bandwidth are those of `jaxpipe.baselines.autoshard.hlo`, which also stores the fitted
constants.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from experiments.alpa_gpt.compiled import config_of
from experiments.alpa_gpt.published import Case
from jaxpipe.baselines.autoshard.hlo import TargetSpeeds
from jaxpipe.baselines.gpt.alpa_gpt import step_flops, step_memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of one device in a step: FLOP, seconds of memory traffic, bytes over one NVLink."""

    flops: float
    memory_s: float
    link_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The two constants: FLOP/s of a V100, bytes/s of an NVLink."""

    speed: float
    link: float


def work_of(case: Case, compiled: Mapping[str, Any], speeds: TargetSpeeds) -> Work:
    """Return the work of a case, with the collectives of the compiled step."""
    config = config_of(case)
    memory_bytes = step_memory_bytes(
        config,
        batch=case.batch,
        dp=case.dp,
        op=case.op,
        remat=case.remat,
        reduce_scatter=case.reduce_scatter,
    )
    return Work(
        flops=step_flops(config, batch=case.batch, remat=case.remat) / (case.dp * case.op),
        memory_s=memory_bytes / speeds.memory_bytes_per_s,
        link_bytes=sum(
            ring_bytes / speeds.num_links[group]
            for ring_bytes, group in compiled["collectives"]
            if group > 1
        ),
    )


def predicted_s(work: Work, fitted: Fitted) -> float:
    """Return the seconds of a step."""
    return work.flops / fitted.speed + work.memory_s + work.link_bytes / fitted.link


def fit(works: Sequence[Work], seconds: Sequence[float]) -> Fitted:
    """Return the constants by least squares of the logarithms.

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
