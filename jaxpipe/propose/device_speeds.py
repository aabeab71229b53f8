"""Speeds of the devices of a cluster: the part of their peak that training reaches."""

from dataclasses import replace

from jaxpipe.errors import ConfigError
from models import GptConfig
from models.gpt_config import DTYPE_BYTES
from topo import Cluster, Device
from topo.gpu import Precision


def precision_of(config: GptConfig, cluster: Cluster) -> Precision:
    """Return the precision of matrix products: for 2 bytes, a format that all GPUs support.

    >>> import topo
    >>> from models import load_preset
    >>> config = GptConfig(**load_preset("gpt-xl-24"))
    >>> precision_of(config, topo.load("case5-worldwide")).value  # a V100 has no bfloat16
    'fp16'
    """
    if DTYPE_BYTES[config.compute_dtype] > 2:
        return Precision.FP32
    known = [device.gpu for device in cluster.devices if device.gpu is not None]
    # bfloat16 first: it needs no loss scaling.
    everywhere = all(Precision.BF16 in dict(gpu.peaks) for gpu in known)
    return Precision.BF16 if known and everywhere else Precision.FP16


def with_speeds(
    cluster: Cluster, precision: Precision, *, fraction: float, unknown_flops_per_s: float | None
) -> Cluster:
    """Return the cluster with the effective FLOP/s of every device.

    A device that states them keeps them; a GPU reaches `fraction` of its peak; any other device
    reaches `unknown_flops_per_s`.

    Raises:
        ConfigError: the speed of a device is unknown, and `unknown_flops_per_s` is None.
    """

    def reached(device: Device) -> Device:
        if device.effective_flops_per_s is not None:
            return device
        if device.gpu is not None:
            peak = device.gpu.peak_flops_per_s(precision)
            return replace(device, effective_flops_per_s=fraction * peak)
        if unknown_flops_per_s is None:
            raise ConfigError(
                f"device {device.name!r} of cluster {cluster.name!r} must state `gpu` or "
                "`effective_tflops`: add one to its file, or give `--tflops`"
            )
        return replace(device, effective_flops_per_s=unknown_flops_per_s)

    return replace(cluster, devices=tuple(reached(device) for device in cluster.devices))
