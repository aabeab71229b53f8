"""Refit the constants and write them: `python -m experiments.dtfm_iteration_time.refit`.

Fits the constants to cases 1 to 3 and to the fp32 pipelines, then again without each case in turn;
a constant that only the case left out determines keeps its value. Case 4, runs of 32 layers, and
random placements with other seeds than the first are not fitted and serve as a test set. Writes
`results/fit.json`, and the constants as `results/constants.toml`, whose numbers go into
`jaxpipe/simulate/data/dtfm.toml`.
"""

import json
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np

from experiments.dtfm_iteration_time.fit import fit, fit_fp32
from experiments.dtfm_iteration_time.prediction import pipeline_seconds, predict
from experiments.dtfm_iteration_time.published import FITTED_CASES, Cell, cells, pipeline_cells
from jaxpipe.simulate import Constants, dtfm_constants

_RESULTS = Path(__file__).parent / "results"
_NUM_ROUNDS = 2
_FITTED_SEED = 2022
_FITTED_LAYERS = (24, 40)


def main() -> None:
    """Fit, leave each case out in turn, and write the report."""
    dtfm = [cell for cell in cells() if cell.system.startswith("dtfm")]
    with ProcessPoolExecutor() as executor:
        fitted = fit_fp32(_fit(dtfm, dtfm_constants(), executor), _pipeline_errors)
        (_RESULTS / "constants.toml").write_text(_toml(fitted))
        left_out = {}
        for case in FITTED_CASES:
            others = _fit([cell for cell in dtfm if cell.case != case], fitted, executor)
            left_out[case] = _summary(_of(case, dtfm), others, executor)
        report = {
            "constants": asdict(fitted),
            "in_sample": {
                case: _summary(_of(case, dtfm), fitted, executor) for case in FITTED_CASES
            },
            "unseen": {4: _summary(_of(4, dtfm), fitted, executor)},
            "left_out": left_out,
            "fp32_errors": _pipeline_errors(fitted).round(4).tolist(),
        }
    (_RESULTS / "fit.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


def _fit(measured: Sequence[Cell], start: Constants, executor: Executor) -> Constants:
    chosen = [cell for cell in measured if _is_fitted(cell)]
    return fit(
        start,
        lambda constants: np.concatenate(
            (_errors(chosen, constants, executor), _pipeline_errors(constants))
        ),
        num_rounds=_NUM_ROUNDS,
    )


def _is_fitted(cell: Cell) -> bool:
    is_drawn = cell.system == "dtfm_scheduled" or cell.seed == _FITTED_SEED
    return cell.case in FITTED_CASES and is_drawn and cell.layers in _FITTED_LAYERS


def _of(case: int, measured: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in measured if cell.case == case]


def _errors(measured: Sequence[Cell], constants: Constants, executor: Executor) -> np.ndarray:
    target = np.array([cell.seconds for cell in measured])
    return predict(measured, constants, executor) / target - 1


def _pipeline_errors(constants: Constants) -> np.ndarray:
    return np.array(
        [pipeline_seconds(cell, constants) / cell.seconds - 1 for cell in pipeline_cells()]
    )


def _summary(
    measured: Sequence[Cell], constants: Constants, executor: Executor
) -> dict[str, float]:
    errors = np.abs(_errors(measured, constants, executor))
    return {
        "median": float(np.median(errors)),
        "within_10_percent": float((errors <= 0.1).mean()),
        "largest": float(errors.max()),
    }


def _toml(constants: Constants) -> str:
    return "\n".join(
        f"[{table}]\n" + "".join(f"{name} = {value:.4g}\n" for name, value in fields.items())
        for table, fields in asdict(constants).items()
        if table != "connections"
    )


if __name__ == "__main__":
    main()
