"""Costs of a model on this machine, for devices of which the cluster file states no speed.

::

    no device has a speed     the profile of the model, measured once on all cores of this machine
                              and kept; of a large model, as below
    some have none            counted FLOPs at the speed of a core of this machine, kept as well

Counted FLOPs do not tell microbatches apart: a microbatch of one sample takes as long per sample as
one of four. A profile does.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import xxhash

from jaxpipe.config import Config
from jaxpipe.models import costs, layer_config
from jaxpipe.models.bottleneck_costs import without_bottlenecks
from jaxpipe.plan.cost import Profile, write_profile
from jaxpipe.profile.kept_profile import kept_profile, measured_profile
from jaxpipe.profile.machine_speed import Speed, kept_speed, measured_speed
from jaxpipe.profile.measuring_process import MeasuredApart
from jaxpipe.profile.profile_task import ProfileTask
from jaxpipe.propose.conditions import trained_model
from jaxpipe.runtime.process.user_cache import user_cache
from jaxpipe.schedule import Remat
from jaxpipe.topo import Cluster
from jaxpipe.topo.this_machine import is_this_machine
from jaxpipe.topo.units import flops_text

_MICROBATCHES = (1, 2, 4)
_MOST_SECONDS = 20.0
"""A profile that takes longer to measure is left to `jaxpipe profile`."""
_REPEATS = 5
"""Computes of each part that a profile takes, about."""


def machine_costs(
    config: Config,
    cluster: Cluster,
    *,
    observe: Callable[[str], None] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Iterator[tuple[Config, tuple[str, ...]]]:
    """Yield the configuration with costs for devices without a speed, and lines about them.

    A measured profile comes first; it is of one rematerialisation. Counted FLOPs follow, for models
    that fit into memory with another one only. With `observe`, which is called with what is
    measured next, a profile that is not kept yet is measured: some seconds for a small model.

    Raises:
        ConfigError: the measurement failed.
    """
    paced = config.paced
    is_known = paced.tflops is not None or paced.profile is not None or paced.profile_of
    if is_known or all(device.has_speed for device in cluster.devices):
        yield config, () if is_known else _by_data_sheet(cluster)
        return
    speed = kept_speed(environment)
    how, say = "kept", observe or (lambda _: None)
    if speed is None:
        measured = measured_speed(environment=environment, observe=say)
        speed, how = measured.value, f"measured {_now(measured)}"
    # Where no device has a speed, all of them count as this machine.
    if not any(device.has_speed for device in cluster.devices):
        profile, source = _profile(config, speed, environment, observe)
        if profile is not None and (path := _written(profile, environment)) is not None:
            line = (
                f"layers take the seconds measured on this machine ({source}){_relative(cluster)}"
            )
            if not is_this_machine(cluster.name):
                line = f"cluster {cluster.name} states no speed: {line}"
            yield replace(config, paced=replace(paced, profile=str(path))), (line,)
    line = (
        f"cluster {cluster.name} states no speed: its devices count as fast as a core of this "
        f"machine, {flops_text(speed.flops_per_s)} ({how}){_relative(cluster)}"
    )
    tflops = speed.flops_per_s * 1e-12
    yield replace(config, paced=replace(paced, tflops=tflops)), (line,)


def _relative(cluster: Cluster) -> str:
    """Return what is said of hosts that are faster or slower than this machine."""
    is_relative = any(device.relative_speed != 1 for device in cluster.devices)
    return ", at the `relative_speed` of each host" if is_relative else ""


def _by_data_sheet(cluster: Cluster) -> tuple[str, ...]:
    """Return a line for this machine where its GPUs count by the peaks of their data sheets."""
    names = sorted({device.gpu.name for device in cluster.devices if device.gpu is not None})
    if not names or not is_this_machine(cluster.name):
        return ()
    return (
        f"layers take the seconds of counted FLOPs, at a part of the peak on the data sheet of "
        f"{', '.join(names)} that is published for V100s; `jaxpipe profile --out FILE` measures "
        "them, for `paced.profile`",
    )


def profile_task(config: Config, *, microbatches: tuple[int, ...]) -> ProfileTask:
    """Return what to measure of a configuration, for microbatches of these sizes in samples."""
    return ProfileTask(
        model=without_bottlenecks(trained_model(config)),
        microbatches=microbatches,
        remat=config.train.remat or Remat.NONE,
        loop=config.train.loop,
        matmul_precision=config.run.matmul_precision,
        lora=config.lora,
        frozen=config.train.frozen,
        optimizer=config.optimizer,
    )


def _profile(
    config: Config,
    speed: Speed,
    environment: Mapping[str, str],
    observe: Callable[[str], None] | None,
) -> tuple[Profile | None, str]:
    """Return the profile of the model and where it is from; None if it is not to be measured."""
    groups = max(1, getattr(config.model, "routing_groups", 0))  # they divide a microbatch
    fixed = config.plan.microbatch
    sizes = tuple(groups * size for size in _MICROBATCHES) if fixed is None else (fixed,)
    task = profile_task(config, microbatches=sizes)
    if (profile := kept_profile(task, environment)) is not None:
        return profile, "kept"
    if observe is None or _seconds(task, speed) > _MOST_SECONDS:
        return None, ""
    measured = measured_profile(task, environment=environment, observe=observe)
    return measured.value, _now(measured)


def _now(measured: MeasuredApart[Any]) -> str:
    """Return what became of a measurement."""
    if measured.is_alone:
        return "now, and kept"
    return f"now, with {measured.share:.0%} of a core beside other work, so it is not kept"


def _seconds(task: ProfileTask, speed: Speed) -> float:
    """Return about how long the computes of a measurement take, without compilation."""
    model = task.model
    sizes = {"batch": sum(task.microbatches), "sequence": model.sequence}
    layer = costs.layer_forward_flops(layer_config(model, 0), **sizes)
    head = costs.head_forward_flops(model, **sizes)
    # A backward takes as long as two forwards; it is measured whole and in halves.
    return _REPEATS * 5 * (layer + head) / speed.flops_per_s


def _written(profile: Profile, environment: Mapping[str, str]) -> Path | None:
    """Write a profile as `paced.profile` reads it; return the file, None if there is no cache."""
    text = repr(profile).encode()
    try:
        folder = user_cache(environment) / "measured"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"of-plan-{xxhash.xxh3_128_hexdigest(text)}.json"
        if not path.exists():
            write_profile(profile, path)
    except (OSError, RuntimeError):  # pathlib raises the latter without a home
        return None
    return path
