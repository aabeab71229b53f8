"""What a child writes is passed on as it is, and its end is kept."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from jaxpipe.runtime.process.mpirun import run_child
from jaxpipe.runtime.process.tee import Output
output = Output()
code = run_child([sys.executable, "-c", sys.argv[1]], output=output)
print(f"{code} {len(output.tail)}", flush=True)
"""

DEAF = """
import sys
from jaxpipe.runtime.process.mpirun import run_child
sys.exit(run_child([sys.executable, "-c", sys.argv[1]]))
"""


def run(code: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PROGRAM, code]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_both_streams_are_passed_on() -> None:
    said = run("import sys; print('out'); sys.stderr.write('no end of line'); sys.exit(3)")
    assert said.stdout == "out\n3 18\n"
    assert said.stderr == "no end of line"


def test_nothing_is_lost_of_what_is_long() -> None:
    said = run("print('x' * 10**7)")
    assert said.stdout.startswith("x" * 10**7 + "\n0 ")


@pytest.mark.parametrize("code", [0, 5])
def test_who_does_not_listen_hears_nothing(code: int) -> None:
    command = [sys.executable, "-c", DEAF, f"print('out'); raise SystemExit({code})"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "out\n")
