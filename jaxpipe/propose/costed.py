"""Costs of a model on a cluster: its profile, the speed of devices and the overheads of links."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from jaxpipe.errors import ConfigError, UserError
from jaxpipe.models import ModelConfig
from jaxpipe.network import MessageCosts
from jaxpipe.plan.cost import Profile, read_profile
from jaxpipe.propose.device_speeds import precision_of, with_speeds
from jaxpipe.propose.gpt_profile import gpt_profile
from jaxpipe.propose.gpu_profiles import read_gpu_profiles, with_profiled_speeds
from jaxpipe.runtime.run_config import MatmulPrecision
from jaxpipe.schedule import Remat
from jaxpipe.simulate import Overheads, dtfm_constants
from jaxpipe.topo import Cluster
from jaxpipe.topo.gpu import Precision, gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Costed:
    """A cluster whose devices all have a speed, and the profile of the model for such a device.

    A stage whose messages stay inside its host takes `local_factor` times the profile's seconds.
    """

    cluster: Cluster
    profile: Profile
    precision: Precision
    local_factor: float
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    """Those of GPU types with one of their own."""

    def overheads(self, *, chunk_bytes: float, ideal: bool, keep_warm: bool) -> Overheads:
        """Return the overheads fitted to DT-FM's runs; with `ideal`, the links as stated.

        So they are for a profile that says how messages leave: another system's. Without
        `keep_warm`, connections start slowly after silences if the cluster says so.
        """
        # How jaxpipe's own connections restart after an idle time is not DT-FM's constant.
        restart_bytes = None if keep_warm else self.cluster.restart_bytes
        stated = MessageCosts(restart_bytes=restart_bytes)
        eager_bytes = self.profile.software.eager_bytes
        if ideal or eager_bytes is not None:
            return Overheads(
                messages=replace(stated, eager_bytes=inf if eager_bytes is None else eager_bytes),
                posts_ahead=self.profile.software.posts_ahead,
                gradients=stated,
                chunk_bytes=chunk_bytes,
                local_factor=self.local_factor,
            )
        network = dtfm_constants().network
        return Overheads(
            messages=replace(network.messages(), restart_bytes=restart_bytes),
            gradients=stated,
            nic_efficiency=network.nic_efficiency,
            local_factor=self.local_factor,
            chunk_bytes=chunk_bytes,
        )


def costed(
    model: ModelConfig,
    cluster: Cluster,
    *,
    remat: Remat,
    profile: Path | None,
    tflops: float | None,
    matmul_precision: MatmulPrecision,
    profiles_of: Sequence[str] = (),
) -> Costed:
    """Return the costs, from counted FLOPs or from a measured `profile`.

    `profiles_of` are words `GPU=FILE`: profiles of GPU types, the first instead of `profile`. A
    device of unknown speed reaches `tflops`, or the speed of the profile by default.

    Raises:
        ConfigError: the speed of a device is unknown.
    """
    precision = precision_of(model, cluster, matmul_precision=matmul_precision)
    speeds = dtfm_constants().speeds(precision)
    unknown = None if tflops is None else tflops * 1e12  # TFLOP/s to FLOP/s
    counted = gpt_profile(model, remat=remat, flops_per_s=1.0)
    by_gpu = read_gpu_profiles(profiles_of, cluster, counted=counted)
    if profile is not None or by_gpu:
        measured = _measured(by_gpu, profile, counted)
        known = with_speeds(
            with_profiled_speeds(cluster, by_gpu),
            precision,
            # The part of its peak that the profiled device reached holds for other types, too.
            fraction=_fraction(measured, precision),
            unknown_flops_per_s=unknown or measured.flops_per_s,
        )
        return Costed(
            cluster=known, profile=measured, precision=precision, local_factor=1.0, profiles=by_gpu
        )
    known = with_speeds(
        cluster,
        precision,
        fraction=speeds.remote_fraction,
        float32_fraction=dtfm_constants().fp32.remote_fraction,
        unknown_flops_per_s=unknown,
    )
    # The profile is that of the fastest device: `Task.slow` says how much longer others take.
    fastest = max(device.flops_per_s(precision) for device in known.devices)
    return Costed(
        cluster=known,
        profile=gpt_profile(model, remat=remat, flops_per_s=fastest),
        precision=precision,
        # Below 1: DT-FM's stages inside one host were faster than those over a network.
        local_factor=speeds.remote_fraction / speeds.local_fraction,
    )


def _measured(by_gpu: Mapping[str, Profile], profile: Path | None, counted: Profile) -> Profile:
    """Return the profile of a file, or else the first of those of GPU types."""
    if profile is None:
        return next(iter(by_gpu.values()))
    try:
        return read_profile(profile, counted=counted)
    except UserError as error:
        raise ConfigError(f"`paced.profile`: {error}") from error


def _fraction(profile: Profile, precision: Precision) -> float:
    """Return the fraction of its peak that the profiled device reached; 1 if that is unknown."""
    try:
        kind = gpu(profile.device)
        return profile.flops_per_s / kind.peak_flops_per_s(kind.product_precision(precision))
    except ValueError:
        return 1.0
