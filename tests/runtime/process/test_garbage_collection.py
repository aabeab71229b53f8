"""A process that ends does not look for garbage first."""

import subprocess
import sys

import pytest

CYCLE = """
from jaxpipe.runtime.process.garbage_collection import collect_rarely
class Cycle:
    def __init__(self): self.itself = self
    def __del__(self): print("collected")
{}
cycle = Cycle()
"""


@pytest.mark.parametrize(("call", "printed"), [("", "collected\n"), ("collect_rarely()", "")])
def test_cycles_are_not_collected_at_the_exit(call: str, printed: str):
    code = CYCLE.format(call)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (printed, "")
