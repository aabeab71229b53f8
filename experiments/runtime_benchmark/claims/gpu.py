"""GPT-XL on one GPU: model FLOPs used, flash attention on and off, ranks that share the device.

FLOPs are those that training needs (`models.train_flops_per_token`): nothing that is computed again
counts. The peak is that of a large matrix product, measured in the same process. Calls count for a
microbatch as long as they hold up the host: the device computes meanwhile, unless they are longer.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiments.runtime_benchmark.claim import Bench, CannotMeasureError, Claim, Row
from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.processes import run_ranks
from experiments.runtime_benchmark.tables import numbers
from models import GptConfig, head_forward_flops, layer_forward_flops, load_preset

_NOTHING = dict.fromkeys(("forward_s", "backward_s", "forward_call_us", "backward_call_us"), "")


def measure(bench: Bench) -> list[Row]:
    """Return a row for each part and attention, and one for each number of ranks."""
    return bench.once({}, partial(_measured, bench))


def _measured(bench: Bench) -> list[Row]:
    case = bench.cases["gpu"]
    model = _model(case)
    found = run_ranks("gpu", {**case, "model": model}, num_ranks=1)
    if case["needs_gpu"] and found["platform"] != "gpu":
        raise CannotMeasureError(f"there is no GPU, only {found['device']}")
    device = {"device": found["device"], "peak_tflops_per_s": found["peak_flops_per_s"] / 1e12}
    rows: list[Row] = [
        {**device, **_part_row(GptConfig(**model), part, peak=found["peak_flops_per_s"])}
        for part in found["parts"]
    ]
    rows += [{**device, **_shared_row(case, model, ranks)} for ranks in case["sharing"]]
    return rows


def _model(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the model: a preset, and what the case changes in it."""
    if "preset" not in case:
        return case["model"]
    preset = load_preset(case["preset"])
    names = ("num_layers", "dim", "num_heads", "sequence", "vocabulary", "compute_dtype")
    return {name: getattr(preset, name) for name in names} | case.get("model", {})


def _part_row(config: GptConfig, part: Mapping[str, Any], *, peak: float) -> dict[str, Any]:
    size = {"batch": part["microbatch"], "sequence": config.sequence}
    flop = 3.0 * part["layers"] * layer_forward_flops(config, **size)
    if part["whole"]:
        flop += 3.0 * head_forward_flops(config, **size)
    seconds = part["forward_s"] + part["backward_s"]
    return {
        "what": "whole model" if part["whole"] else f"{part['layers']} layers",
        "attention": part["attention"],
        "microbatch": part["microbatch"],
        "ranks": 1,
        "forward_s": part["forward_s"],
        "backward_s": part["backward_s"],
        "forward_call_us": 1e6 * part["forward_call_s"],
        "backward_call_us": 1e6 * part["backward_call_s"],
        "tokens_per_s": part["microbatch"] * config.sequence / seconds,
        "mfu": flop / seconds / peak,
    }


def _shared_row(case: Mapping[str, Any], model: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """Return the speed of whole training steps by ranks that share the device."""
    plan = {"stages": ranks, "replicas": 1, "microbatch": 1, "schedule": "1f1b"}
    task = {"model": model, "plan": plan, "batch": case["shared_batch"], "steps": 4}
    memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / ranks:.3f}"}
    result = run_ranks("pipeline", task, num_ranks=ranks, settings=memory)
    return {
        "what": "training step",
        "attention": "auto",
        "microbatch": 1,
        "ranks": ranks,
        **_NOTHING,
        "tokens_per_s": case["shared_batch"] * model["sequence"] / min(result["step_s"][1:]),
        "mfu": "",
    }


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return the rows as they are, with the aim beside them."""
    return [{**row, "aim": "mfu >= 0.55" if row["mfu"] != "" else ""} for row in raw]


def draw(raw: Sequence[Row], path: Path) -> None:
    """Draw the model FLOPs used."""
    parts = [row for row in raw if row["mfu"] != ""]
    bars(
        {
            f"{row['what']}\n{row['attention']}\nx {row['microbatch']}": numbers([row], "mfu")
            for row in parts
        },
        path,
        title=f"Part of the matrix peak of {raw[0]['device']} (measured; dashed: aim)",
        unit="model FLOPs used",
        aim=0.55,
    )


GPU = Claim(
    aim="GPT-XL uses at least 55 % of the measured matrix peak of one GPU",
    measure=measure,
    summarise=summarise,
    draw=draw,
)
