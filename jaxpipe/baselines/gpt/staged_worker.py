"""Search stages in a process that `jaxpipe autoshard stages` starts: JSON in, JSON out."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from jaxpipe.baselines.gpt.sharding_problem import config_and_speeds
from jaxpipe.baselines.gpt.staged_plan import cluster_of, staged_plan
from jaxpipe.baselines.gpt.staged_search import SearchedStages, search_stages
from jaxpipe.errors import UserError
from jaxpipe.plan.plan_file import plan_text


def main() -> None:
    """Answer the request; a mistake of the user is an answer too, `error`."""
    try:
        answer = _answer(json.loads(sys.stdin.read()))
    except UserError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    config, speeds = config_and_speeds(request)
    searched = search_stages(
        config,
        speeds,
        num_devices=request["mesh"],
        batch=request["batch"],
        remat=request["remat"],
        as_plan=request["plan"] is not None,
    )
    stages = [
        {
            "layers": [stage.layers.start, stage.layers.stop],
            "devices": [stage.devices.start, stage.devices.stop],
            "dp": dp,
            "op": op,
            "seconds": stage.cost.seconds,
        }
        for stage, (dp, op) in zip(searched.staged.stages, searched.shapes, strict=True)
    ]
    return _plan(searched, request, host_devices=speeds.host_devices) | {
        "stages": stages,
        "microbatch": searched.microbatch,
        "predicted_s": searched.staged.step_s,
        "predicted_tflops": searched.tflops,
        "peak_bytes": searched.peak_bytes,
        "search_s": searched.search_s,
    }


def _plan(
    searched: SearchedStages, request: Mapping[str, Any], *, host_devices: int
) -> dict[str, Any]:
    """Return the text of the plan file and its cluster, where they are asked for."""
    if request["plan"] is None:
        return {}
    cluster = cluster_of(request["mesh"], host_devices=host_devices)
    plan = staged_plan(
        searched.staged,
        searched.shapes,
        microbatch=searched.microbatch,
        batch=request["batch"],
        cluster=cluster,
    )
    about = f"Stages of {request['model']} that `jaxpipe autoshard stages` has found."
    return {"plan_text": plan_text(plan, cluster, about=about), "cluster": cluster.name}


if __name__ == "__main__":
    main()
