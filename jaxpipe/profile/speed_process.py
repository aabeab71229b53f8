"""The process that measures a core's speed: `python -m jaxpipe.profile.speed_process POSITION`."""

import os
import sys
import time

import numpy as np

from jaxpipe.profile.machine_speed import Speed
from jaxpipe.profile.measuring_process import begin_measuring
from jaxpipe.runtime.process.compile_cache import use_compile_cache

_COPIED_BYTES = 2**26
"""More than the caches of a core."""
_NUM_COPIES = 10


def main(position: str) -> None:
    """Measure products, then copies; write the result for the parent."""
    parent = begin_measuring(position)
    use_compile_cache(os.environ)

    from jaxpipe.profile.timing import matrix_peak_flops_per_s
    from jaxpipe.runtime.blas.product_lowering import use_products

    use_products(os.environ)  # as a rank does, when it compiles its stage
    parent.observe("matrix products", times=True)
    flops_per_s = matrix_peak_flops_per_s(dtype="float32", clock=time.perf_counter)
    parent.observe("copies in memory", times=True)
    parent.result(Speed(flops_per_s=flops_per_s, copy_bytes_per_s=_copy_bytes_per_s()))


def _copy_bytes_per_s() -> float:
    source = np.ones(_COPIED_BYTES, np.uint8)
    target = np.zeros_like(source)
    seconds = []
    for _ in range(_NUM_COPIES):
        start_s = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - start_s)
    return _COPIED_BYTES / float(np.median(seconds))


if __name__ == "__main__":
    main(sys.argv[1])
