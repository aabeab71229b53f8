"""GPT-XL on one GPU: model FLOPs utilisation (MFU), flash attention on and off, ranks per device.

FLOPs are those that training needs (`jaxpipe.models.train_flops_per_token`), without recomputation.
The peak is that of a large matrix product in the same process. `*_call_us` is the time until a call
returns to the host while the device still computes.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from experiments.emulated_links import CannotMeasureError
from experiments.runtime_benchmark.bench import Bench, Claim, Measurement
from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.runs import run_ranks
from experiments.table import Row
from jaxpipe.models import GptConfig, head_forward_flops, layer_forward_flops, load_preset

_NOTHING = dict.fromkeys(("forward_s", "backward_s", "forward_call_us", "backward_call_us"), "")


def measurements(bench: Bench) -> list[Measurement]:
    """Return the one part: a row per part and attention, and a row per number of ranks."""
    return [Measurement(columns={}, measure=partial(_measure, bench))]


def _measure(bench: Bench) -> list[Row]:
    case = bench.cases["gpu"]
    model = _model(case)
    found = run_ranks("gpu", {**case, "model": model}, num_ranks=1)
    if case["needs_gpu"] and found["platform"] != "gpu":
        raise CannotMeasureError(f"it needs a GPU, not {found['device']}")
    device = {"device": found["device"], "peak_tflops_per_s": found["peak_flops_per_s"] / 1e12}
    rows: list[Row] = [
        {**device, **_part_row(GptConfig(**model), part, peak=found["peak_flops_per_s"])}
        for part in found["parts"]
    ]
    rows += [{**device, **_shared_row(case, model, ranks)} for ranks in case["sharing"]]
    return rows


def _model(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the model: a preset with the overrides of the case."""
    if "preset" not in case:
        return case["model"]
    preset = GptConfig(**load_preset(case["preset"]))
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
    """Return the throughput of whole training steps by ranks that share the device."""
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
    """Return the rows with their aim."""
    return [{**row, "aim": "mfu >= 0.55" if row["mfu"] != "" else ""} for row in raw]


GPU = Claim(
    aim="GPT-XL uses at least 55 % of the measured matrix peak of one GPU",
    measurements=measurements,
    summarise=summarise,
    draw=bars(
        "what",
        "attention",
        "microbatch",
        value="mfu",
        title="Fraction of the measured matrix peak of the GPU (measured; dashed: aim)",
        aim=0.55,
    ),
)
