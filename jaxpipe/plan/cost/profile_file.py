"""The file of a profile: read with a check, written as JSON."""

from pathlib import Path
from typing import Any

import msgspec

from jaxpipe.errors import PlanError
from jaxpipe.foreign_file import read_json, reason_of
from jaxpipe.plan.cost.layer_profile import Profile
from jaxpipe.plan.cost.stage_times import StageTimes, profile_of_stages

_MOST_BYTES = 2**28


def read_profile(path: Path, *, counted: Profile | None = None) -> Profile:
    """Return the profile in a JSON file.

    A file of stages takes its parameters and bytes from `counted`, the counted FLOPs of the model.

    Raises:
        PlanError: the file cannot be read, or is not a profile, or not one of this model.
    """
    try:
        content = read_json(path, dict[str, Any], most_bytes=_MOST_BYTES)
        if "stages" not in content:
            return msgspec.convert(content, Profile)
        times = msgspec.convert(content, StageTimes)
        if counted is None:
            raise ValueError("`stages` are of a model, which is not given here; give `layers`")
        return profile_of_stages(times, counted)
    except OSError as error:
        raise PlanError(f"cannot read the profile {path}: {reason_of(error)}") from error
    except ValueError as error:
        raise PlanError(
            f"{path} is not a profile: {error}; `jaxpipe.plan.cost.layer_profile` shows the format"
        ) from error


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile as JSON, for `read_profile`."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=2))
