"""The speed of this machine, for devices of which the cluster file states none."""

from dataclasses import replace

from jaxpipe.config import Config
from jaxpipe.profile.machine_speed import kept_speed, measured_speed
from jaxpipe.topo import Cluster


def with_machine_speed(config: Config, cluster: Cluster) -> tuple[Config, tuple[str, ...]]:
    """Return the configuration with a speed for devices that have none, and a line about it.

    It is that of a core of this machine, measured once and kept.

    Raises:
        ConfigError: the measurement failed.
    """
    paced = config.paced
    is_known = paced.tflops is not None or paced.profile is not None or paced.profile_of
    if is_known or all(device.has_speed for device in cluster.devices):
        return config, ()
    speed = kept_speed()
    how = "measured before and kept" if speed is not None else "measured now, and kept"
    speed = speed or measured_speed()
    line = (
        f"cluster {cluster.name} states no speed: its devices count as fast as a core of this "
        f"machine, {speed.flops_per_s * 1e-9:,.0f} GFLOP/s ({how})"
    )
    tflops = speed.flops_per_s * 1e-12
    return replace(config, paced=replace(paced, tflops=tflops)), (line,)
