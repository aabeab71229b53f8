"""The process that profiles a model: `python -m jaxpipe.profile.profile_process POSITION TASK`."""

import os
import sys
import time

import msgspec

from jaxpipe.profile.measuring_process import begin_measuring
from jaxpipe.profile.profile_task import task_from
from jaxpipe.runtime.process.compile_cache import use_compile_cache


def main(position: str, task: str) -> None:
    """Measure a task in JSON; write the profile for the parent."""
    parent = begin_measuring(position)
    use_compile_cache(os.environ)

    from jaxpipe.profile.brief_parts import measure_briefly
    from jaxpipe.runtime.blas.product_lowering import use_products

    use_products(os.environ)  # as a rank does, when it compiles its stage
    fields = msgspec.json.decode(task)
    parent.result(measure_briefly(task_from(fields), clock=time.perf_counter, parent=parent))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
