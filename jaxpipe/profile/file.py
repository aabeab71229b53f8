"""The file of measured costs: a profile as the planner reads it, and beside it all that was seen.

The fields are those of `jaxpipe.plan.cost.Profile`, which are medians; the key `measured`, which
readers of profiles pass over, holds every part with its spread, memory and FLOPs.
"""

from pathlib import Path

import msgspec

from jaxpipe.profile.gpt import GptCosts, as_profile


def write_costs(measured: GptCosts, path: Path) -> None:
    """Write measured costs as JSON, which `jaxpipe.plan.cost.read_profile` reads.

    Raises:
        ConfigError: a shorter sequence than the model's was measured.
    """
    tree = msgspec.to_builtins(as_profile(measured)) | {"measured": msgspec.to_builtins(measured)}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(tree), indent=2) + b"\n")
