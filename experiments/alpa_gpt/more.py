"""Rows that no constant was fitted to: `python -m experiments.alpa_gpt.more`.

Table 2.3, with 8, 12 and 16 layers, and table 2.2 in float32, next to what `run --layers` and `run
--dtype float32` predicted with the constants of tables 2.1 and 2.2. Nothing is compiled here.

Then one more constant is fitted, the speed of float32 products, to all rows in float32 but one,
whose time it then predicts.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from scipy.optimize import minimize_scalar

from experiments.alpa_gpt.compiled import config_of
from experiments.alpa_gpt.published import Case, Row, more_rows
from experiments.alpa_gpt.run import FP32_OF_FP16
from experiments.table import markdown, percent, read_csv, write_csv
from jaxpipe.baselines.gpt.alpa_gpt import step_flops

_RESULTS = Path(__file__).parent / "results"
_NAMES = ("num_comm", "allreduce", "allgather", "reducescatter")


def main() -> None:
    """Compare, and write `results/more.csv` and `more.md`."""
    rows = more_rows()
    table = [_compared(row, predicted(row.case)) for row in rows]
    write_csv(table, _RESULTS / "more.csv")
    left_out = _left_out([row for row in rows if row.case.dtype == "float32"])
    text = f"{markdown(table)}\n\n{markdown(left_out)}\n"
    (_RESULTS / "more.md").write_text(text)
    print(text)


def speed(rows: Sequence[Row], *, assumed: float) -> float:
    """Return the speed of products that fits these rows, by least squares of the logarithms."""

    def loss(log_speed: float) -> float:
        return sum(
            math.log(_seconds(row.case, math.exp(log_speed), assumed) / row.seconds) ** 2
            for row in rows
        )

    bounds = math.log(assumed / 4), math.log(assumed * 4)
    return math.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x)


def _left_out(rows: Sequence[Row]) -> list[dict[str, str | int]]:
    """Return each row's time with the speed that fits the others, and the speed that fits all."""
    fitted = json.loads((_RESULTS / "fitted.json").read_text())
    assumed = FP32_OF_FP16 * fitted["speed"]
    found: list[dict[str, str | int]] = []
    for row in rows:
        own = speed([each for each in rows if each is not row], assumed=assumed)
        seconds = _seconds(row.case, own, assumed)
        found.append(
            {
                "left out": f"({row.case.dp}, {row.case.op})",
                "recompute": "yes" if row.case.remat else "no",
                "TFLOPS of the others": f"{own / 1e12:.2f}",
                "theirs: seconds": f"{row.seconds:.3f}",
                "ours: seconds, predicted": f"{seconds:.3f}",
                "seconds, error": percent(seconds / row.seconds - 1),
            }
        )
    return found


def _seconds(case: Case, flops_per_s: float, assumed: float) -> float:
    """Return our time of a case with another speed of products than was assumed."""
    flops = step_flops(config_of(case), batch=case.batch, remat=case.remat) / (case.dp * case.op)
    seconds = float(predicted(case)["ours: seconds, fitted"])
    return seconds + flops / flops_per_s - flops / assumed


def predicted(case: Case) -> Mapping[str, str]:
    """Return our row of a case, from the results of `run`."""
    path = _RESULTS / f"layers{case.layers}-{case.dtype}-batch{case.batch}.csv"
    wanted = {
        "dp": str(case.dp),
        "op": str(case.op),
        "recompute": "yes" if case.remat else "no",
    }
    (found,) = [row for row in read_csv(path) if wanted.items() <= row.items()]
    return found


def _compared(theirs: Row, ours: Mapping[str, str]) -> dict[str, str | int]:
    seconds = ours["ours: seconds, fitted"]
    return {
        "table": theirs.case.table,
        "dtype": theirs.case.dtype,
        "layers": theirs.case.layers,
        "dp": theirs.case.dp,
        "op": theirs.case.op,
        "recompute": ours["recompute"],
        "theirs: comm AR AG RS": " ".join(str(theirs.counts[name]) for name in _NAMES),
        "ours: comm AR AG RS": ours["ours: comm AR AG RS"],
        "theirs: seconds": f"{theirs.seconds:.3f}",
        "ours: seconds, predicted": seconds,
        "seconds, error": percent(float(seconds) / theirs.seconds - 1),
        "theirs: peak GiB": f"{theirs.peak_gib:.3f}",
        "ours: peak GiB, V100 compiled": ours["ours: peak GiB, V100 compiled"],
    }


if __name__ == "__main__":
    main()
