"""GPT-XL on one GPU, beside PyTorch: model FLOPs utilisation (MFU), attention, memory, sharing.

FLOPs are those that training needs (`jaxpipe.models.train_flops_per_token`), without recomputation.
The peak is that of a large matrix product in the same process. `*_call_us` is the time until a call
returns to the host while the device still computes. `error` is that of attention in bfloat16, its
output and gradients, relative to float32 on the CPU. `peak_gib` is the most memory that rank 0
held; `estimated_gib` is what the planner says of it. In a training step with `none ahead`, the host
waits for each forward and backward before it dispatches the next.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiments.emulated_links import CannotMeasureError
from experiments.runtime_benchmark.bench import Bench, Claim, Measurement
from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.runs import plan_of, run_commands, run_ranks
from experiments.table import Row
from jaxpipe import topo
from jaxpipe.models import GptConfig, head_forward_flops, layer_forward_flops, load_preset
from jaxpipe.plan.cost.memory import stage_memory
from jaxpipe.propose.gpt_profile import bytes_each, gpt_profile
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.schedule.remat import Remat

_AIM = 0.55
_COLUMNS = (
    *("microbatch", "forward_s", "backward_s", "forward_call_us", "backward_call_us"),
    *("tokens_per_s", "tflops_per_s", "peak_tflops_per_s", "device"),
    *("peak_gib", "estimated_gib", "last_loss", "scores", "error"),
)
_STEPS = 4


def measurements(bench: Bench) -> list[Measurement]:
    """Return a measurement per system, number of layers and attention, and per number of ranks.

    What matters most comes first: the time on a GPU is dear, and compilers take most of it.
    """
    case = bench.cases["gpu"]
    model = _model(case)
    task = {**case, "model": model}
    first, *others = case["attentions"]
    python = bench.torch_python
    return [
        *_parts_of(task, first),
        *(_of_torch(python, task | {"compiled": False}) if python else ()),
        *(
            _measurement(
                *("jaxpipe", "training step", "auto"),
                partial(_shared, case, model, ranks),
                ranks=ranks,
            )
            for ranks in case["sharing"]
        ),
        _measurement(
            *("jaxpipe", "training step, none ahead", "auto"),
            partial(_shared, {**case, "in_flight": 1}, model, 1),
        ),
        *(
            _measurement("jaxpipe", "attention", form, partial(_errors, task | {"attention": form}))
            for form in case["attentions"]
        ),
        *(part for form in others for part in _parts_of(task, form)),
        *(_of_torch(python, task | {"compiled": True}) if python else ()),
    ]


def _parts_of(task: dict[str, Any], attention: str) -> list[Measurement]:
    return [
        _measurement(
            "jaxpipe",
            _name(layers, task["model"]),
            attention,
            partial(_parts, task | {"layers": layers, "attention": attention}),
        )
        for layers in task["layers"]
    ]


def _of_torch(python: Path, task: dict[str, Any]) -> list[Measurement]:
    """Return the measurements of PyTorch, with or without its compiler."""
    system = "torch compiled" if task["compiled"] else "torch"
    parts = [
        _measurement(
            system,
            _name(layers, task["model"]),
            "fused",
            partial(_torch_parts, python, task | {"layers": layers, "measures": "parts"}),
        )
        for layers in task["layers"]
    ]
    steps = partial(_torch_steps, python, task | {"measures": "steps"})
    return [*parts, _measurement(system, "training step", "fused", steps)]


def _measurement(
    system: str, what: str, attention: str, measure: Callable[[], Sequence[Row]], *, ranks: int = 1
) -> Measurement:
    columns = {"system": system, "what": what, "attention": attention, "ranks": ranks}
    return Measurement(columns=columns, measure=measure)


def _name(layers: int, model: Mapping[str, Any]) -> str:
    return "whole model" if layers == model["num_layers"] else f"{layers} layers"


def _model(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the model: a preset with the overrides of the case."""
    if "preset" not in case:
        return case["model"]
    preset = GptConfig(**load_preset(case["preset"]))
    names = ("num_layers", "dim", "num_heads", "sequence", "vocabulary", "compute_dtype")
    return {name: getattr(preset, name) for name in names} | case.get("model", {})


def _parts(task: dict[str, Any]) -> list[Row]:
    result = _of_device(task | {"measures": "parts"})
    device = {
        "device": result["device"],
        "peak_tflops_per_s": result["peak_flops_per_s"] / 1e12,
    }
    return [{**_part_row(task, part), **device} for part in result["rows"]]


def _errors(task: dict[str, Any]) -> list[Row]:
    """Return the errors of one form of attention, a row for each kind of scores."""
    result = _of_device(task | {"measures": "errors"})
    return [_row(device=result["device"], **row) for row in result["rows"]]


def _of_device(task: Mapping[str, Any]) -> dict[str, Any]:
    result = run_ranks("gpu", task, num_ranks=1)
    if task["needs_gpu"] and result["platform"] != "gpu":
        raise CannotMeasureError(f"it needs a GPU, not {result['device']}")
    return result


def _part_row(task: Mapping[str, Any], part: Mapping[str, Any]) -> Row:
    config, layers = GptConfig(**task["model"]), task["layers"]
    size = {"batch": part["microbatch"], "sequence": config.sequence}
    flop = 3.0 * layers * layer_forward_flops(config, **size)
    if layers == config.num_layers:
        flop += 3.0 * head_forward_flops(config, **size)
    seconds = part["forward_s"] + part["backward_s"]
    return _row(
        microbatch=part["microbatch"],
        forward_s=part["forward_s"],
        backward_s=part["backward_s"],
        **{
            f"{direction}_call_us": 1e6 * part[f"{direction}_call_s"]
            for direction in ("forward", "backward")
            if f"{direction}_call_s" in part
        },
        tokens_per_s=part["microbatch"] * config.sequence / seconds,
        tflops_per_s=flop / seconds / 1e12,
    )


def _shared(case: Mapping[str, Any], model: Mapping[str, Any], ranks: int) -> list[Row]:
    """Return the throughput of whole training steps by ranks that share the device."""
    plan = {"stages": ranks, "replicas": 1, "microbatch": 1, "schedule": "1f1b"}
    task = {"model": model, "plan": plan, "batch": case["shared_batch"], "steps": _STEPS}
    if "in_flight" in case:
        task["in_flight"] = case["in_flight"]
    memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / ranks:.3f}"}
    result = run_ranks("pipeline", task, num_ranks=ranks, settings=memory)
    row = _step_row(case, model, result)
    config = GptConfig(**model)
    estimate = stage_memory(
        plan_of(task, topo.load("laptop")),
        gpt_profile(config, remat=Remat.NONE, flops_per_s=1.0),
        each=bytes_each(config, OptimizerConfig()),
    )
    return [
        {
            **row,
            "estimated_gib": estimate[0].total / 2**30,
            "last_loss": result["losses"][-1],
        }
    ]


def _torch_parts(python: Path, task: Mapping[str, Any]) -> list[Row]:
    return [_part_row(task, part) for part in _run_torch(python, task)["rows"]]


def _torch_steps(python: Path, task: Mapping[str, Any]) -> list[Row]:
    sized = {**task, "batch": task["shared_batch"], "steps": _STEPS}
    return [_step_row(task, task["model"], _run_torch(python, sized))]


def _run_torch(python: Path, task: Mapping[str, Any]) -> Any:
    program = Path(__file__).parents[1] / "programs" / "torch_gpu.py"
    return run_commands([[str(python), str(program)]], task)


def _step_row(case: Mapping[str, Any], model: Mapping[str, Any], result: Mapping[str, Any]) -> Row:
    config, batch = GptConfig(**model), case["shared_batch"]
    size = {"batch": batch, "sequence": config.sequence}
    layers = config.num_layers * layer_forward_flops(config, **size)
    seconds = min(result["step_s"][1:])
    return _row(
        microbatch=1,
        tokens_per_s=batch * config.sequence / seconds,
        tflops_per_s=3.0 * (layers + head_forward_flops(config, **size)) / seconds / 1e12,
        peak_gib="" if result["peak_bytes"] is None else result["peak_bytes"] / 2**30,
    )


def _row(**values: Any) -> dict[str, Any]:
    return dict.fromkeys(_COLUMNS, "") | values


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return the rows with their MFU, and with their speed beside PyTorch's without a compiler."""
    peaks = [float(row["peak_tflops_per_s"]) for row in raw if row["peak_tflops_per_s"] != ""]
    eager = {
        (row["what"], row["ranks"], row["microbatch"]): float(row["tokens_per_s"])
        for row in raw
        if row["system"] == "torch"
    }
    rows = []
    for row in raw:
        key = (row["what"], row["ranks"], row["microbatch"])
        speed, of_torch = row["tokens_per_s"], eager.get(key)
        mfu = float(row["tflops_per_s"]) / max(peaks) if row["tflops_per_s"] != "" else ""
        beside = float(speed) / of_torch if speed != "" and of_torch else ""
        rows.append(
            {**row, "mfu": mfu, "beside_torch": beside, "aim": f"mfu >= {_AIM}" if mfu else ""}
        )
    return rows


def _draw(raw: Sequence[Row], path: Path) -> None:
    bars(
        *("system", "what", "attention", "ranks", "microbatch"),
        value="mfu",
        title="Fraction of the measured matrix peak of the GPU (measured; dashed: aim)",
        aim=_AIM,
    )(summarise(raw), path)


GPU = Claim(
    aim="GPT-XL uses at least 55 % of the measured matrix peak of one GPU",
    measurements=measurements,
    summarise=summarise,
    draw=_draw,
)
