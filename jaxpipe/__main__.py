"""The entry of `jaxpipe` and `python -m jaxpipe`."""

import sys

from jaxpipe.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
