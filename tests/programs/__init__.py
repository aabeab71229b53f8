"""Programs that tests start, some of them on several ranks; each has a view of the tests' cache."""

import os
import sys

from jaxpipe.runtime.process.compile_cache import use_compile_cache
from jaxpipe.runtime.process.garbage_collection import collect_rarely

if "pytest" not in sys.modules:  # tests import what some of the programs define
    use_compile_cache(os.environ)
    collect_rarely()
