"""A training run of which rank 1 has another version of jax, or another configuration."""

import os
import sys
from importlib import metadata

from jaxpipe.cli.main import main
from jaxpipe.runtime.process.launched_rank import launched_rank

_version = metadata.version


def version(name: str) -> str:
    return "0.0" if name == "jax" else _version(name)


if __name__ == "__main__":
    here = launched_rank(os.environ)
    arguments = ["train", sys.argv[1]]
    if here is not None and here.rank == 1:
        if sys.argv[2] == "versions":
            metadata.version = version
        else:
            arguments += ["--set", "run.seed=99"]
    sys.exit(main(arguments))
