"""Fit the constants: Gauss-Newton over whole simulations, in logarithms, robust to bad cells.

A constant is a physical quantity above zero, so its logarithm is fitted. Each round
simulates all runs once more per constant to estimate the slopes, then solves the linear problem
within a trust region.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import msgspec
import numpy as np
from scipy.optimize import least_squares

from jaxpipe.simulate import Constants

_NUDGE = 0.04
_REACH = 0.4
_LOOSE = 10.0
"""Width of the prior in logarithms: a constant that no cell determines keeps its value."""

_ROBUST = 0.03
"""Relative errors above this count less than quadratically."""

FITTED = (
    ("fp16", "local_fraction"),
    ("fp16", "remote_fraction"),
    ("network", "message_overhead_s"),
    ("network", "flow_bytes_per_s"),
    ("network", "host_bytes_per_s"),
    ("network", "nic_efficiency"),
)
"""The constants that all runs of DT-FM share."""

_PARTS = ("local_fraction", "remote_fraction", "nic_efficiency")
"""Fractions, at most 1."""

Errors = Callable[[Constants], np.ndarray]
"""The relative errors of all cells with these constants."""


def fit(start: Constants, errors_of: Errors, *, num_rounds: int) -> Constants:
    """Return the constants with the smallest errors after `num_rounds`."""
    constants, reach = start, _REACH
    errors = errors_of(constants)
    for number in range(num_rounds):
        found = step(constants, errors, slopes(constants, errors, errors_of), reach=reach)
        found_errors = errors_of(found)
        print(f"round {number}: {_loss(errors):.3f} -> {_loss(found_errors):.3f}", found)
        if _loss(found_errors) < _loss(errors):
            constants, errors = found, found_errors
        else:
            reach /= 3
    return constants


def slopes(constants: Constants, errors: np.ndarray, errors_of: Errors) -> np.ndarray:
    """Return the derivative of each error by the logarithm of each constant."""
    return np.column_stack(
        [
            (errors_of(_moved(constants, nudge)) - errors) / -_NUDGE
            for nudge in -_NUDGE * np.eye(len(FITTED))
        ]
    )


def step(
    constants: Constants, errors: np.ndarray, slope: np.ndarray, *, reach: float = _REACH
) -> Constants:
    """Return the constants that fit best if the errors are linear with these slopes."""
    highest = _highest(constants, reach)
    solved = least_squares(
        lambda log_step: np.concatenate((errors + slope @ log_step, log_step / _LOOSE)),
        np.zeros(len(highest)),
        bounds=(np.full(len(highest), -reach), highest + 1e-12),
        loss="soft_l1",
        f_scale=_ROBUST,
    )
    return _moved(constants, solved.x)


def fit_fp32(start: Constants, errors_of: Errors) -> Constants:
    """Return the constants with the fp32 speed that about minimises the largest error."""

    def with_speed(fraction: float) -> Constants:
        speeds = {"local_fraction": fraction, "remote_fraction": fraction}
        return msgspec.convert(asdict(start) | {"fp32": speeds}, Constants)

    solved = least_squares(
        # High powers approximate the maximum norm.
        lambda fraction: (errors_of(with_speed(float(fraction[0]))) / _ROBUST) ** 8,
        [start.fp32.remote_fraction],
        bounds=(0.1, 1.0),
        diff_step=0.01,
    )
    return with_speed(float(solved.x[0]))


def _moved(constants: Constants, log_step: Sequence[float] | np.ndarray) -> Constants:
    fields = asdict(constants)
    for (table, name), moved in zip(FITTED, log_step, strict=True):
        fields[table][name] *= float(np.exp(moved))
    return msgspec.convert(fields, Constants)


def _highest(constants: Constants, reach: float) -> np.ndarray:
    """Return the largest allowed step of the logarithm of each constant."""
    fields = asdict(constants)
    return np.array(
        [
            min(reach, -np.log(fields[table][name])) if name in _PARTS else reach
            for table, name in FITTED
        ]
    )


def _loss(errors: np.ndarray) -> float:
    return float(np.sum(np.sqrt(1 + (errors / _ROBUST) ** 2) - 1))
