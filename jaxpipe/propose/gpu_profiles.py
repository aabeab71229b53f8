"""Profiles of several GPU types in one plan: which file is whose, and how slow its devices are."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from jaxpipe.errors import ConfigError
from jaxpipe.plan.cost import Profile, read_profile
from jaxpipe.topo import Cluster


def read_gpu_profiles(
    given: Sequence[str], cluster: Cluster, *, counted: Profile
) -> dict[str, Profile]:
    """Return the profile of each GPU type, from words `GPU=FILE`; the first is that of the model.

    Files of stages take parameters and bytes from `counted`, the counted FLOPs of the model.

    Raises:
        ConfigError: a word is not one, or the cluster has no such GPU, or profiles differ in what
            does not depend on the GPU: layers, parameters, bytes of activations.
        PlanError: a file cannot be read, or is not a profile.
    """
    kinds = {device.gpu.name for device in cluster.devices if device.gpu is not None}
    found: dict[str, Profile] = {}
    for word in given:
        name, is_named, file = word.partition("=")
        if not is_named or name not in kinds:
            raise ConfigError(
                f"`paced.profile_of` must be a GPU of cluster {cluster.name!r} and its profile, "
                f"`GPU=FILE`, not {word!r}; its GPUs are {', '.join(sorted(kinds)) or 'not named'}"
            )
        found[name] = read_profile(Path(file), counted=counted)
    _check_alike(found)
    return found


def with_profiled_speeds(cluster: Cluster, profiles: Mapping[str, Profile]) -> Cluster:
    """Return the cluster whose profiled devices have the speed at which they compute the model.

    It is that of the first profile times the seconds of all layers there, over theirs: exact for
    the whole model, and for stages as far as layers keep their proportions.
    """
    if not profiles:
        return cluster
    first = next(iter(profiles.values()))
    speeds = {
        name: first.flops_per_s * _sample_s(first) / _sample_s(profile)
        for name, profile in profiles.items()
    }
    return replace(
        cluster,
        devices=tuple(
            replace(device, effective_flops_per_s=speeds[device.gpu.name])
            if device.gpu is not None and device.gpu.name in speeds
            else device
            for device in cluster.devices
        ),
    )


def _sample_s(profile: Profile) -> float:
    """Return the seconds of a sample through the whole model."""
    whole = profile.stage((len(profile.layers),), 0)
    return (whole.forward_s + whole.backward_s) / profile.microbatch


def _check_alike(profiles: Mapping[str, Profile]) -> None:
    def shape(profile: Profile) -> tuple[object, ...]:
        parts = (profile.embed, *profile.layers, profile.head)
        each = round(profile.activation_bytes / profile.microbatch)
        return (len(profile.layers), each, [part.parameters for part in parts])

    names = list(profiles)
    for name in names[1:]:
        if shape(profiles[name]) != shape(profiles[names[0]]):
            raise ConfigError(
                f"profiles are of one model: that of `paced.profile_of` {name} has "
                f"{len(profiles[name].layers)} layers, other parameters or other activations than "
                f"that of {names[0]}, with {len(profiles[names[0]].layers)} layers; measure both "
                "with the same configuration"
            )
