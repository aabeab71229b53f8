"""What the package exports, and that planners can import it without jax."""

import subprocess
import sys

import models


def test_exports_are_sorted_and_there() -> None:
    names = models.__all__
    constants = [name for name in names if name.isupper()]
    classes = [name for name in names if name[0].isupper() and name not in constants]
    functions = [name for name in names if name[0].islower()]
    assert names == sorted(constants) + sorted(classes) + sorted(functions)
    assert all(hasattr(models, name) for name in names)


def test_sizes_and_costs_need_no_jax() -> None:
    program = (
        "import sys, models, models.catalogue, models.gpt_config, models.gpt_costs; "
        "print(sorted({'jax', 'flax', 'numpy', 'jaxpipe'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
