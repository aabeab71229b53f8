"""`jaxpipe autoshard --search duplex`: HiDup's search, under a profile of collectives."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplexRequest:
    """What to search for.

    Args:
        model: a preset.
        layers: the number of layers; None is that of the preset.
        batch: samples in a step, over all devices.
        dtype: the format of computation.
        target: the device, one of `Target`.
        links: a published profile of collectives, or a file with one; it says how many devices.
        noise: amplitude of the noise on the profile.
        seed: of the noise.
    """

    model: str
    layers: int | None
    batch: int
    dtype: str
    target: str
    links: str
    noise: float
    seed: int


def search_duplex(request: DuplexRequest, *, out: Path | None, draw: bool, as_json: bool) -> int:
    """Search, print the strategy, and write it."""
    from jaxpipe.baselines.autoshard.duplex import search, step_s
    from jaxpipe.baselines.autoshard.duplex.describe import (
        count_step_collectives,
        draw_found,
        strategy_json,
    )
    from jaxpipe.baselines.autoshard.duplex.noise import noisy_model
    from jaxpipe.run.output_files import check_output

    check_output("--out", out)
    model = _cost_model(request)
    believed = noisy_model(model, amplitude=request.noise, seed=request.seed)
    found = search(believed)
    counts = {str(kind): count for kind, count in count_step_collectives(found.strategy).items()}
    answer: dict[str, Any] = {
        "truth": "simulated",
        "model": request.model,
        "links": request.links,
        "devices": model.profile.devices,
        "noise": request.noise,
        "seed": request.seed,
        "num_stages": sum(each.starts_stage for each in found.strategy),
        "collectives": counts,
        "memory_bytes": found.memory_bytes,
        "predicted_s": step_s(model, found.strategy),
        "believed_s": found.seconds,
        "search_s": found.search_s,
    }
    if out is not None:
        out.write_text(strategy_json(model, found))
    if as_json:
        print(json.dumps(answer))
        return 0
    print("\n".join(_lines(answer)))
    if draw:
        print(f"\n{draw_found(model, found)}")
    if out is not None:
        print(f"\nstrategy -> {out}")
    return 0


def _cost_model(request: DuplexRequest) -> Any:
    from jaxpipe.baselines.autoshard.duplex import CostModel, Device, find_profile
    from jaxpipe.baselines.autoshard.hlo import Target, target_speeds
    from jaxpipe.baselines.gpt.model_sizes import duplex_graph
    from jaxpipe.errors import ConfigError
    from jaxpipe.models import gpt_preset

    profile = find_profile(request.links)
    if request.batch % (2 * profile.devices) or request.batch < 1:
        raise ConfigError(
            f"`--batch` must be a multiple of {2 * profile.devices}, two halves for each of the "
            f"{profile.devices} devices of `--links`, not {request.batch}"
        )
    speeds = target_speeds(Target(request.target))
    if request.dtype not in speeds.products:
        raise ConfigError(
            f"`--dtype` must be one of {', '.join(speeds.products)} for the target, not "
            f"{request.dtype}"
        )
    try:
        config = gpt_preset(request.model)
    except ValueError as error:
        raise ConfigError(f"`--model`: {error}") from error
    if request.layers is not None:
        config = replace(config, num_layers=request.layers)
    graph = duplex_graph(config, batch=request.batch, dtype=request.dtype)
    device = Device(
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
