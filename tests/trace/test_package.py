"""The names that the package exports, and what importing it leaves alone."""

import subprocess
import sys

import jaxpipe.trace


def test_all_is_sorted_and_present():
    names = jaxpipe.trace.__all__
    assert names == sorted(names)
    assert all(hasattr(jaxpipe.trace, name) for name in names)


def test_importing_it_needs_no_matplotlib():
    code = "import sys, jaxpipe.trace; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
