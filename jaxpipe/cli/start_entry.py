"""`python -m jaxpipe.cli.start_entry CONFIG REQUEST`: an attempt, or a rank, that jaxpipe starts.

The options of `jaxpipe train` are those of its users; what a launcher or a supervisor tells the
processes that it starts is a `TrainRequest`.
"""

import sys

from jaxpipe.cli.main import with_exit_code
from jaxpipe.run.start import TrainRequest, start_training

if __name__ == "__main__":
    sys.exit(with_exit_code(lambda: start_training(TrainRequest.of_words(sys.argv[1:]))))
