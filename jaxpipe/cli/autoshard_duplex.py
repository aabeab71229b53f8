"""`jaxpipe autoshard duplex`: HiDup's search, under a profile of collectives."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplexOptions:
    """The training step, and the devices to search for."""

    model: str = "alpa-6.7b"
    """A preset."""
    layers: int | None = None
    """The number of layers; default: that of the preset."""
    batch: int = 4
    """Samples in a step, over all devices."""
    dtype: Literal["float16", "bfloat16", "float32"] = "float16"
    """The format of computation."""
    target: Literal["cpu", "v100", "h200"] = "cpu"
    """The device; times for `cpu` are those of V100s."""
    links: str = "v100-1x8"
    """A published profile of collectives, or a file of `jaxpipe profile --collectives`; it says how
    many devices there are."""
    noise: float = 0.0
    """Amplitude of random errors of the profile; 0.2 is 20 %."""
    seed: int = 0
    """Seed of the noise."""


def search_duplex(
    request: tyro.conf.OmitArgPrefixes[DuplexOptions],
    *,
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
    draw: bool = False,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Search a strategy in which two halves of the batch overlap (HiDup), and predict its time.

    Args:
        request: the step and the devices.
        out: the JSON file to write the strategy to, for `autoshard execute`.
        draw: print the strategy.
        json_: print one JSON object and nothing else.
    """
    from jaxpipe.baselines.autoshard.duplex import search, step_s
    from jaxpipe.baselines.autoshard.duplex.describe import (
        count_step_collectives,
        draw_found,
        strategy_json,
    )
    from jaxpipe.baselines.autoshard.duplex.noise import noisy_model
    from jaxpipe.run.folder.output_files import check_output

    check_output("--out", out)
    model = _cost_model(request)
    believed = noisy_model(model, amplitude=request.noise, seed=request.seed)
    result = search(believed)
    counts = {str(kind): count for kind, count in count_step_collectives(result.strategy).items()}
    answer: dict[str, Any] = {
        "truth": "simulated",
        "model": request.model,
        "links": request.links,
        "devices": model.profile.devices,
        "noise": request.noise,
        "seed": request.seed,
        "num_stages": sum(decision.starts_stage for decision in result.strategy),
        "collectives": counts,
        "memory_bytes": result.memory_bytes,
        "predicted_s": step_s(model, result.strategy),
        "believed_s": result.seconds,
        "search_s": result.search_s,
    }
    if out is not None:
        out.write_text(strategy_json(model, result))
    if json_:
        print(json.dumps(answer))
        return 0
    print("\n".join(_lines(answer)))
    if draw:
        print(f"\n{draw_found(model, result)}")
    if out is not None:
        print(f"\nstrategy -> {out}")
    return 0


def _cost_model(request: DuplexOptions) -> Any:
    from jaxpipe.baselines.autoshard.duplex import CostModel, DeviceSpeed, find_profile
    from jaxpipe.baselines.autoshard.hlo import CompileTarget, target_speeds
    from jaxpipe.baselines.gpt.model_sizes import duplex_graph
    from jaxpipe.cli.autoshard_request import preset_of
    from jaxpipe.errors import ConfigError

    profile = find_profile(request.links)
    if request.batch % (2 * profile.devices) or request.batch < 1:
        raise ConfigError(
            f"`--batch` must be a multiple of {2 * profile.devices}, two halves for each of the "
            f"{profile.devices} devices of `--links`, not {request.batch}"
        )
    speeds = target_speeds(CompileTarget(request.target))
    if request.dtype not in speeds.products:
        raise ConfigError(
            f"`--dtype` must be one of {', '.join(speeds.products)} for the target, not "
            f"{request.dtype}"
        )
    config = preset_of(request.model)
    if request.layers is not None:
        config = replace(config, num_layers=request.layers)
    graph = duplex_graph(config, batch=request.batch, dtype=request.dtype)
    device = DeviceSpeed(
        flops_per_s=speeds.products[request.dtype], memory_bytes_per_s=speeds.memory_bytes_per_s
    )
    return CostModel(graph=graph, device=device, profile=profile)


def _lines(answer: dict[str, Any]) -> list[str]:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(answer["collectives"].items()))
    noise = f"; with the noise it believed {answer['believed_s']:.4g} s" if answer["noise"] else ""
    return [
        f"strategy      {answer['num_stages']} stages of two halves on {answer['devices']} devices",
        f"collectives   {kinds or 'none'} in a step",
        f"memory        {answer['memory_bytes'] / GIB:.3f} GiB a device: state and outputs",
        f"a step        {answer['predicted_s']:.4g} s (simulated, {answer['links']}){noise}",
        f"took          {answer['search_s']:.2f} s to search",
    ]
