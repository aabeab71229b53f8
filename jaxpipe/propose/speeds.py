"""What the devices of a cluster reach: the part of their peak that training gets out of them."""

from dataclasses import replace

from jaxpipe.errors import ConfigError
from models import GptConfig
from models.gpt_config import DTYPE_BYTES
from topo import Cluster, Device
from topo.gpu import Precision


def precision_of(config: GptConfig, cluster: Cluster) -> Precision:
    """Return what the products are computed in: of the formats of 2 bytes, one that all GPUs have.

    >>> import topo
    >>> from models import load_preset
    >>> config = GptConfig(**load_preset("gpt-xl-24"))
    >>> precision_of(config, topo.load("case5-worldwide")).value  # a V100 has no bfloat16
    'fp16'
    """
    if DTYPE_BYTES[config.compute_dtype] > 2:
        return Precision.FP32
    known = [device.gpu for device in cluster.devices if device.gpu is not None]
    everywhere = all(Precision.BF16 in dict(gpu.peaks) for gpu in known)
    return Precision.BF16 if known and everywhere else Precision.FP16


def with_speeds(
    cluster: Cluster, precision: Precision, *, fraction: float, unknown_flops_per_s: float | None
) -> Cluster:
    """Return the cluster, every device with the FLOP/s that it reaches.

    Those that state them keep them; of a GPU's peak `fraction` is reached; a device of which
    nothing is known reaches `unknown_flops_per_s`.

    Raises:
        ConfigError: nothing is known of a device, and `unknown_flops_per_s` is None.
    """

    def reached(device: Device) -> Device:
        if device.effective_flops_per_s is not None:
            return device
        if device.gpu is not None:
            peak = device.gpu.peak_flops_per_s(precision)
            return replace(device, effective_flops_per_s=fraction * peak)
        if unknown_flops_per_s is None:
            raise ConfigError(
                f"the planner has to know how fast devices are: {device.name!r} of cluster "
                f"{cluster.name!r} states neither `gpu` nor `effective_tflops`; add one to its "
                "file, or say `--tflops`"
            )
        return replace(device, effective_flops_per_s=unknown_flops_per_s)

    return replace(cluster, devices=tuple(reached(device) for device in cluster.devices))
