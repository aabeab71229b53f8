"""Search stages in a process of its own: JSON in, JSON out; `jaxpipe autoshard` starts it."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from jaxpipe.autoshard.hlo import Target, target_speeds
from jaxpipe.errors import ConfigError, UserError
from jaxpipe.models import GptConfig, load_preset
from jaxpipe.propose.staged_search import search_stages


def main() -> None:
    """Answer the request; a mistake of the user is an answer too, `error`."""
    try:
        answer = _answer(json.loads(sys.stdin.read()))
    except UserError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    speeds = target_speeds(Target(request["target"]))
    if request["dtype"] not in speeds.products:
        raise ConfigError(
            f"`--dtype` must be a format whose speed on the target is known: "
            f"{', '.join(speeds.products)}, not {request['dtype']}"
        )
    fields = {**load_preset(request["model"]), "compute_dtype": request["dtype"]}
    if request["layers"] is not None:
        fields["num_layers"] = request["layers"]
    found = search_stages(
        GptConfig(**fields),
        speeds,
        num_devices=request["mesh"],
        batch=request["batch"],
        remat=request["remat"],
    )
    stages = [
        {
            "layers": [each.layers.start, each.layers.stop],
            "devices": [each.devices.start, each.devices.stop],
            "dp": dp,
            "op": op,
            "seconds": each.cost.seconds,
        }
        for each, (dp, op) in zip(found.staged.stages, found.shapes, strict=True)
    ]
    return {
        "stages": stages,
        "microbatch": found.microbatch,
        "predicted_s": found.staged.step_s,
        "predicted_tflops": found.tflops,
        "peak_bytes": found.peak_bytes,
        "search_s": found.search_s,
    }


if __name__ == "__main__":
    main()
