"""Train the same model in several ways over one cluster, and simulate each with its own computes.

Forwards and backwards of a stage take their mean time in the trace of the run; the links are those
of the scaled cluster.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from experiments.emulation.commands import emulate, run, train
from jaxpipe import topo
from jaxpipe.config import Config, load_config
from jaxpipe.plan import Plan
from jaxpipe.plan.cost import Profile
from jaxpipe.plan.partition import layers_of
from jaxpipe.propose.conditions import counted_profile
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.simulate import Conditions, plan_step_s
from jaxpipe.topo import with_slower_links
from jaxpipe.trace import Lane, Span, read_chrome

WAYS = ("namespaces", "shaped")
_GRADIENT_BYTES = 4


def train_by(way: str, case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Train in `folder`; return a row of measured and simulated step times and losses.

    Raises:
        RuntimeError: the run failed.
    """
    arguments = [case["config"], "--set", f"plan.cluster={case['cluster']}"]
    arguments += ["--set", f"run.folder={folder}"]
    if way == "namespaces":
        emulate(case["cluster"], case["scale"], train(arguments))
    else:
        shaped = ("run.transport=shaped", f"run.link_scale={case['scale']}")
        run(train([*arguments, *(each for setting in shaped for each in ("--set", setting))]))
    config = load_config(Path(case["config"]), [f"plan.cluster={case['cluster']}"])
    metrics = read_metrics(folder / "metrics.jsonl")
    spans = read_chrome(folder / "trace.json").spans
    traced = {span.step for span in spans}
    step_s = median(each.step_s for each in metrics if each.step in traced)
    predicted_s = simulated_s(config, spans, scale=case["scale"])
    return {
        "way": way,
        "step_s_emulated": f"{step_s:.4f}",
        "step_s_simulated": f"{predicted_s:.4f}",
        "ratio": f"{step_s / predicted_s:.3f}",
        "first_loss": repr(metrics[0].loss),
        "last_loss": repr(metrics[-1].loss),
    }


def simulated_s(config: Config, spans: tuple[Span, ...], *, scale: float) -> float:
    """Return the simulated seconds of a step with the compute times of a trace."""
    plan = plan_from(config)
    cluster = with_slower_links(topo.load(config.plan.cluster), scale=scale)
    profile = counted_profile(config, plan.remat)
    conditions = Conditions(
        cluster=cluster,
        profile=_as_measured(profile, plan, spans),
        slow=np.ones(len(cluster)),
        gradient_bytes=_GRADIENT_BYTES,
    )
    return plan_step_s(plan, conditions)


def _as_measured(profile: Profile, plan: Plan, spans: tuple[Span, ...]) -> Profile:
    """Return the profile whose layers divide the measured time of their stage evenly."""
    layers = []
    for stage in range(plan.num_stages):
        stage_layers = layers_of(plan.cut, stage)
        num_samples = len(stage_layers) * plan.microbatch
        forward_s, backward_s = (
            _mean_s(spans, stage, name) / num_samples for name in ("forward", "backward")
        )
        layers += [
            replace(layer, forward_s=forward_s, backward_s=backward_s)
            for layer in profile.layers[stage_layers.start : stage_layers.stop]
        ]
    head = replace(profile.head, forward_s=0.0, backward_s=0.0)
    return replace(profile, layers=tuple(layers), head=head)


def _mean_s(spans: tuple[Span, ...], stage: int, name: str) -> float:
    return fmean(
        span.end_s - span.start_s
        for span in spans
        if span.lane is Lane.COMPUTE and span.stage == stage and span.name == name
    )
