"""Hooks of ranks of which one stops itself (SIGSTOP), at the place that the environment names."""

import os
import signal
from pathlib import Path

from jaxpipe.runtime.hooks import NO_HOOKS, Hooks, SavePhase

PLACE = "JAXPIPE_TEST_STOPS_AT"
VICTIM = 1


class _Stopped(Hooks):
    def before_compile(self, *, done: int, total: int) -> None:  # noqa: ARG002
        _stop_at("compile")

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
    return _Stopped() if rank == VICTIM else NO_HOOKS
