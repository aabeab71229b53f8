"""Search stages in a process of its own: JSON in, JSON out; `jaxpipe autoshard` starts it."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from jaxpipe.cli.autoshard_problem import config_and_speeds
from jaxpipe.errors import UserError
from jaxpipe.propose.staged_search import search_stages


def main() -> None:
    """Answer the request; a mistake of the user is an answer too, `error`."""
    try:
        answer = _answer(json.loads(sys.stdin.read()))
    except UserError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    config, speeds = config_and_speeds(request)
    found = search_stages(
        config,
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
