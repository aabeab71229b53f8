"""A training run of which rank 1 has another configuration."""

import os
import sys

from jaxpipe.cli.main import main
from jaxpipe.runtime.process.launched_rank import launched_rank

if __name__ == "__main__":
    here = launched_rank(os.environ)
    other = ("--set", "run.seed=99") if here is not None and here.rank == 1 else ()
    sys.exit(main(["train", sys.argv[1], *other]))
