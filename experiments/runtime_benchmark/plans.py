"""From a task, as `cases.toml` has it, to a plan, and to a cluster that is emulated."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import topo
from jaxpipe.plan import Plan, PlanConfig, default_plan
from jaxpipe.schedule import ScheduleKind
from models import GptConfig, activation_bytes
from topo import Cluster


def plan_of(task: Mapping[str, Any], cluster: Cluster) -> Plan:
    """Return the plan of a task: `model`, `plan` and `batch`."""
    model = GptConfig(**task["model"])
    given = task["plan"] | {"schedule": ScheduleKind(task["plan"]["schedule"])}
    if "cut" in given:
        given["cut"] = tuple(given["cut"])
    return default_plan(
        PlanConfig(**given),
        cluster,
        num_layers=model.num_layers,
        batch=task["batch"],
        tied=model.tied,
    )


def emulated_cluster(task: Mapping[str, Any]) -> Cluster:
    """Return some devices of a cluster, slowed down `time_scale` times, for small messages.

    Where an activation of `activation_bytes` is meant, one of the task's model travels: the links
    carry as many bytes less as it is smaller, so that it takes as long.
    """
    whole, model = topo.load(task["cluster"]), GptConfig(**task["model"])
    sent = activation_bytes(model, batch=task["plan"]["microbatch"], sequence=model.sequence)
    slower = task["time_scale"] * task["activation_bytes"] / sent
    both = np.ix_(task["devices"], task["devices"])
    return Cluster(
        name=f"{whole.name}, emulated",
        devices=tuple(whole.devices[device] for device in task["devices"]),
        latency_s=task["time_scale"] * whole.latency_s[both],
        bandwidth_bytes_per_s=whole.bandwidth_bytes_per_s[both] / slower,
    )
