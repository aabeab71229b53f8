"""The border between the units people write and the SI units that the code computes in.

>>> seconds_from_ms(11)
0.011
>>> bytes_per_s_from_gbps(1.12)
140000000.0
"""


def seconds_from_ms(milliseconds: float) -> float:
    """Return seconds."""
    return milliseconds / 1e3


def ms_from_seconds(seconds: float) -> float:
    """Return milliseconds."""
    return seconds * 1e3


def bytes_per_s_from_gbps(gigabits_per_second: float) -> float:
    """Return bytes per second; a gigabit is 1e9 bits."""
    return gigabits_per_second * 1e9 / 8


def gbps_from_bytes_per_s(bytes_per_second: float) -> float:
    """Return gigabits per second."""
    return bytes_per_second * 8 / 1e9


def flops_per_s_from_tflops(teraflops_per_second: float) -> float:
    """Return FLOP per second."""
    return teraflops_per_second * 1e12


def bytes_from_gib(gibibytes: float) -> int:
    """Return bytes; a gibibyte is 2**30 of them."""
    return round(gibibytes * 2**30)


def bytes_from_mib(mebibytes: float) -> float:
    """Convert MiB to bytes."""
    return mebibytes * 2**20


def mib_from_bytes(num_bytes: float) -> float:
    """Convert bytes to MiB."""
    return num_bytes / 2**20


def gib_from_bytes(num_bytes: float) -> float:
    """Return gibibytes."""
    return num_bytes / 2**30


def tflops_from_flops_per_s(flops_per_second: float) -> float:
    """Return TFLOP per second."""
    return flops_per_second / 1e12


def flops_text(flops_per_second: float) -> str:
    """Return a speed of computation in GFLOP/s, or in TFLOP/s from one on.

    >>> flops_text(1.471e11), flops_text(4.85e14)
    ('147.1 GFLOP/s', '485.0 TFLOP/s')
    """
    if flops_per_second < 1e12:
        return f"{flops_per_second / 1e9:.1f} GFLOP/s"
    return f"{tflops_from_flops_per_s(flops_per_second):.1f} TFLOP/s"
