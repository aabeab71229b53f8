"""Hooks of ranks of which some stop themselves (SIGSTOP), at the place that the environment names.

At the place `slow` they do not answer for a while in the compilation: a call holds the interpreter.
"""

import ctypes
import os
import signal
from pathlib import Path

from jaxpipe.runtime.hooks import NO_HOOKS, Hooks, SavePhase

PLACE = "JAXPIPE_TEST_STOPS_AT"
VICTIMS = "JAXPIPE_TEST_STOPS"
"""Their numbers, with commas between them."""
SLOW_S = 15


class _Stopped(Hooks):
    def before_compile(self, *, done: int, total: int) -> None:  # noqa: ARG002
        _stop_at("compile")
        if os.environ[PLACE] == "slow" and done == 0:
            ctypes.PyDLL(None).sleep(SLOW_S)

    def after_compile(self) -> None:
        _stop_at("compiled")

    def before_evaluation(self) -> None:
        _stop_at("evaluate")

    def before_save_phase(self, phase: SavePhase) -> None:
        _stop_at(f"save-{phase.value}")


def _stop_at(place: str) -> None:
    if os.environ[PLACE] == place:
        os.kill(os.getpid(), signal.SIGSTOP)


def stopped(config: Path, *, rank: int) -> Hooks:
    """Return the hooks of a rank."""
    return _Stopped() if f"{rank}" in os.environ[VICTIMS].split(",") else NO_HOOKS
