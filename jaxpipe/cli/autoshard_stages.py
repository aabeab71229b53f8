"""`jaxpipe autoshard stages`: Alpa's inter-operator search over its intra-operator one."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from jaxpipe.cli.autoshard_request import check_dtype, check_mesh, preset_of
from jaxpipe.errors import ConfigError, PlanError

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class StagesOptions:
    """The training step, and the devices that its stages share."""

    model: str = "alpa-6.7b"
    """A preset of Alpa's, `alpa-...`."""
    layers: int | None = None
    """The number of layers; default: that of the preset."""
    mesh: int = 4
    """The number of devices, in hosts of the target."""
    batch: int = 4
    """Sequences in a step, over all devices."""
    dtype: Literal["float16", "bfloat16", "float32"] = "float16"
    """The format of computation."""
    remat: bool = False
    """Rematerialize each layer in the backward."""
    target: Literal["cpu", "v100", "h200"] = "cpu"
    """The device; times for `cpu` are those of V100s."""


def search_stages(
    request: tyro.conf.OmitArgPrefixes[StagesOptions],
    *,
    plan: Path | None = None,
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
    draw: bool = False,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Divide an Alpa model into stages on submeshes, each sharded as is fastest; predict its time.

    Args:
        request: the step and the devices.
        plan: a plan file to write, which `jaxpipe train` executes with a rank for each stage, on a
            mesh of its own: stages lie inside hosts.
        out: the JSON file to write the stages to.
        draw: print the layers and the devices of each stage.
        json_: print one JSON object and nothing else.
    """
    from jaxpipe.baselines.autoshard.hlo import run_python
    from jaxpipe.run.folder.output_files import check_output

    check_output("--out", out)
    check_output("--plan", plan)
    asked = _checked(request, plan)
    answer = run_python("jaxpipe.baselines.gpt.staged_worker", asked, num_devices=1)
    if "error" in answer:
        raise PlanError(answer["error"])
    text = answer.pop("plan_text", "")
    answer = {"truth": "simulated", "model": asked["model"], "devices": asked["mesh"], **answer}
    if plan is not None:
        plan.write_text(text)
    if out is not None:
        out.write_text(json.dumps(answer, indent=2) + "\n")
    if json_:
        print(json.dumps(answer))
        return 0
    print("\n".join(_lines(answer, asked)))
    if draw:
        print("\n" + "\n".join(_drawing(answer)))
    if out is not None:
        print(f"\nstages -> {out}")
    if plan is not None:
        print(f"\nplan   -> {plan}\n{_next(answer, asked)}")
    return 0


def _checked(request: StagesOptions, plan: Path | None) -> dict[str, Any]:
    """Return the request in the types of JSON.

    Raises:
        ConfigError: the model is not Alpa's, a number is out of range, or a speed is not known.
    """
    check_mesh(request.mesh)
    preset_of(request.model)
    if not request.model.startswith("alpa-"):
        raise ConfigError(
            f"`--model` must be one of the `alpa-` presets, whose costs are known, not "
            f"{request.model!r}; for others use `jaxpipe published plan alpa`"
        )
    check_dtype(request.dtype, request.target)
    return {**asdict(request), "plan": None if plan is None else str(plan)}


def _lines(answer: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    stages, microbatch = answer["stages"], answer["microbatch"]
    device = "v100" if asked["target"] == "cpu" else asked["target"]
    return [
        f"stages        {len(stages)} on {' + '.join(map(str, map(_size, stages)))} devices, "
        f"layers {' '.join(str(stage['layers'][1] - stage['layers'][0]) for stage in stages)}",
        f"microbatches  {asked['batch'] // microbatch} of {microbatch} samples",
        f"peak          {answer['peak_bytes'] / GIB:.3f} GiB a device (simulated)",
        f"a step        {answer['predicted_s']:.4g} s, {answer['predicted_tflops']:.1f} TFLOPS "
        f"(simulated for {device})",
        f"took          {answer['search_s']:.1f} s to search",
        f"to run it     {_how_to_run(stages, microbatch, has_plan=asked['plan'] is not None)}",
    ]


def _size(stage: Mapping[str, Any]) -> int:
    return stage["devices"][1] - stage["devices"][0]


def _how_to_run(stages: list[dict[str, Any]], microbatch: int, *, has_plan: bool) -> str:
    """Return the sections of a configuration that runs the stages, a rank for each."""
    meshes = {(stage["dp"], stage["op"]) for stage in stages}
    if has_plan:
        return "with the plan below"
    if len(meshes) > 1:
        return "`--plan plan.toml` writes a plan: the stages have unlike meshes"
    [(data, tensor)] = meshes
    layers = ", ".join(str(stage["layers"][1] - stage["layers"][0]) for stage in stages)
    return (
        f"[plan] stages = {len(stages)}, replicas = 1, cut = [{layers}], microbatch = "
        f"{microbatch}; [mesh] data = {data}, tensor = {tensor}"
    )


def _next(answer: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Return what a configuration needs, and the command that runs it."""
    layers = answer["stages"][-1]["layers"][1]
    return (
        f'set in your configuration: [plan] file = "{asked["plan"]}", cluster = '
        f'"{answer["cluster"]}"; [train] batch = {asked["batch"]}; [model] num_layers = {layers}, '
        "tied = false\nnext: jaxpipe train my.toml   (on CPUs: "
        f"XLA_FLAGS=--xla_force_host_platform_device_count={asked['mesh']})"
    )


def _drawing(answer: Mapping[str, Any]) -> list[str]:
    return [
        f"layers {stage['layers'][0]:>3} .. {stage['layers'][1] - 1:<3} devices "
        f"{stage['devices'][0]:>3} .. {stage['devices'][1] - 1:<3} dp {stage['dp']} "
        f"x op {stage['op']}   {1e3 * stage['seconds']:.3f} ms a microbatch"
        for stage in answer["stages"]
    ]
