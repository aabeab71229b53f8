"""What the package offers: sorted, present, and without an MPI."""

import subprocess
import sys

import jaxpipe.comm


def test_all_is_sorted_and_present():
    names = jaxpipe.comm.__all__
    assert list(names) == sorted(names, key=lambda name: (not name.isupper(), name))
    assert all(hasattr(jaxpipe.comm, name) for name in names)


def test_needs_no_mpi():
    command = "import sys, jaxpipe.comm; sys.exit('mpi4py' in sys.modules)"
    subprocess.run([sys.executable, "-c", command], check=True, timeout=60.0)
