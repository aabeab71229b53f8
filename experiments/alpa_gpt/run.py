"""Write the tables: `python -m experiments.alpa_gpt.run [--layers 8] [--dtype float32]`.

Without options: the published tables 2.1 and 2.2, theirs and ours, and the fit of the two
constants. With options: the cases of table 2.2 with another number of layers or another format, for
which nothing was published; times are predicted with the stored constants.
"""

import argparse
import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.alpa_gpt.compiled import config_of
from experiments.alpa_gpt.formulas import GIB, state_gib
from experiments.alpa_gpt.predict import Fitted, Work, fit, predicted_s, work_of
from experiments.alpa_gpt.published import Case, Row, rows
from experiments.table import markdown, percent, write_csv
from jaxpipe.baselines.autoshard.hlo import (
    CompileTarget,
    has_gpu_compiler,
    run_python,
    target_speeds,
)
from jaxpipe.baselines.gpt.alpa_gpt import step_flops

_HERE = Path(__file__).parent
_RESULTS = _HERE / "results"
FP32_OF_FP16 = 15.7 / 120
"""Peak FLOP/s of a V100 in float32 over those of its tensor cores (NVIDIA's data sheet)."""


def main() -> None:
    """Compile, compare and predict."""
    options = _options()
    _RESULTS.mkdir(exist_ok=True)
    settings = tomllib.loads((_HERE / "cases.toml").read_text())
    if options.layers is None and options.dtype is None and options.batch is None:
        _published()
        return
    cases = _cases(settings, options)
    fitted = Fitted(**json.loads((_RESULTS / "fitted.json").read_text()))
    works, found = worked(cases)
    table = [
        _our_row(case, work, each, _in_format(fitted, case))
        for case, work, each in zip(cases, works, found, strict=True)
    ]
    name = f"layers{cases[0].layers}-{cases[0].dtype}-batch{cases[0].batch}"
    write_csv(table, _RESULTS / f"{name}.csv")
    print(markdown(table))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, help="number of layers of width 4096")
    parser.add_argument("--dtype", choices=("float16", "float32"))
    parser.add_argument("--batch", type=int, help="sequences of 1024 tokens, over all devices")
    parser.add_argument("--table", choices=("2.1", "2.2"), default="2.2", help="meshes and options")
    return parser.parse_args()


def _cases(settings: dict[str, Any], options: argparse.Namespace) -> list[Case]:
    table = settings["tables"][options.table]
    return [
        Case(
            table=options.table,
            dp=dp,
            op=op,
            layers=options.layers or table["layers"],
            batch=options.batch or table["batch"],
            dtype=options.dtype or table["dtype"],
            remat=remat,
            reduce_scatter=table["reduce_scatter"],
        )
        for remat in table["remat"]
        for dp, op in table["meshes"]
    ]


def _published() -> None:
    theirs = rows()
    cases = [row.case for row in theirs]
    works, found = worked(cases)
    fitted = fit(works, [row.seconds for row in theirs])
    table = [
        _compared(row, _our_row(row.case, work, each, fitted))
        for row, work, each in zip(theirs, works, found, strict=True)
    ]
    errors = [
        predicted_s(work, fitted) / row.seconds - 1 for row, work in zip(theirs, works, strict=True)
    ]
    write_csv(table, _RESULTS / "tables2.csv")
    (_RESULTS / "fitted.json").write_text(json.dumps(asdict(fitted), indent=2) + "\n")
    summary = (
        f"Fitted: {fitted.speed / 1e12:.1f} TFLOPS a V100, {fitted.link / 1e9:.1f} GB/s an NVLink. "
        f"Times: median error {100 * float(np.median(np.abs(errors))):.1f} %, largest "
        f"{100 * max(map(abs, errors)):.1f} %; order of the meshes right in "
        f"{_orders_right(theirs, works, fitted)}."
    )
    text = f"## Tables 2.1 and 2.2\n\n{summary}\n\n{markdown(table)}\n"
    (_RESULTS / "tables.md").write_text(text)
    print(text)


def worked(cases: Sequence[Case]) -> tuple[list[Work], list[dict[str, Any]]]:
    """Compile the cases for the CPU in two ways, and for the V100 if its compiler is installed."""
    by_layout = _compiled(cases, CompileTarget.CPU, by_layout=True)
    flat = by_layout
    if any(case.reduce_scatter for case in cases):
        flat = _compiled(cases, CompileTarget.CPU, by_layout=False)
    v100: Sequence[dict[str, Any] | None] = [None] * len(cases)
    if has_gpu_compiler():
        v100 = _compiled(cases, CompileTarget.V100, by_layout=True)
    speeds = target_speeds(CompileTarget.V100)
    works = [work_of(case, each, speeds) for case, each in zip(cases, by_layout, strict=True)]
    found = [
        {**each, "flat": other["counts"], "v100": gpu}
        for each, other, gpu in zip(by_layout, flat, v100, strict=True)
    ]
    return works, found


def _compiled(
    cases: Sequence[Case], target: CompileTarget, *, by_layout: bool
) -> list[dict[str, Any]]:
    request = [{**asdict(case), "target": target.value, "by_layout": by_layout} for case in cases]
    devices = max(case.dp * case.op for case in cases)
    module = "experiments.alpa_gpt.compiled"
    return run_python(module, request, num_devices=devices, path=_HERE.parents[1])


def _in_format(fitted: Fitted, case: Case) -> Fitted:
    """Return the constants in the case's format, at the same fraction of peak."""
    if case.dtype == "float16":
        return fitted
    return replace(fitted, speed=fitted.speed * FP32_OF_FP16)


def _our_row(case: Case, work: Work, found: dict[str, Any], fitted: Fitted) -> dict[str, Any]:
    seconds = predicted_s(work, fitted)
    config = config_of(case)
    gpu = found["v100"]
    return {
        "table": case.table,
        "dtype": case.dtype,
        "layers": case.layers,
        "batch": case.batch,
        "dp": case.dp,
        "op": case.op,
        "recompute": "yes" if case.remat else "no",
        "ours: comm AR AG RS": _counts(found["counts"]),
        "ours, flat": _counts(found["flat"]),
        "ours: arguments GiB": f"{found['arguments'] / GIB:.3f}",
        "ours: parameters by formula GiB": f"{state_gib(config, op=case.op):.3f}",
        "ours: peak GiB, V100 compiled": "" if gpu is None else f"{gpu['peak'] / GIB:.3f}",
        "ours: seconds, fitted": f"{seconds:.3f}",
        "ours: TFLOPS, fitted": (
            f"{step_flops(config, batch=case.batch, remat=case.remat) / seconds / 1e12:.1f}"
        ),
        "ours: compile s, CPU": f"{found['compile_s']:.1f}",
    }


def _compared(row: Row, ours: dict[str, Any]) -> dict[str, Any]:
    flops = step_flops(config_of(row.case), batch=row.case.batch, remat=row.case.remat)
    recomputed = flops / row.seconds / 1e12
    peak = ours["ours: peak GiB, V100 compiled"]
    return {
        **ours,
        "theirs: comm AR AG RS": _counts(row.counts),
        "theirs: peak GiB": f"{row.peak_gib:.3f}",
        "peak, error": percent(float(peak) / row.peak_gib - 1) if peak else "",
        "theirs: seconds": f"{row.seconds:.3f}",
        "seconds, error": percent(float(ours["ours: seconds, fitted"]) / row.seconds - 1),
        "theirs: TFLOPS": f"{row.tflops:.2f}",
        "TFLOPS recomputed, error": percent(recomputed / row.tflops - 1),
    }


def _counts(counts: dict[str, int]) -> str:
    names = ("num_comm", "allreduce", "allgather", "reducescatter")
    return " ".join(str(counts[name]) for name in names)


def _orders_right(theirs: Sequence[Row], works: Sequence[Work], fitted: Fitted) -> str:
    groups: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for row, work in zip(theirs, works, strict=True):
        key = (row.case.table, row.case.remat)
        groups.setdefault(key, []).append((row.seconds, predicted_s(work, fitted)))
    right = sum(
        [seconds for seconds, _ in sorted(group)]
        == [seconds for seconds, _ in sorted(group, key=lambda pair: pair[1])]
        for group in groups.values()
    )
    return f"{right} of {len(groups)} tables"


if __name__ == "__main__":
    main()
