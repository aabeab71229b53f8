"""Every pair of settings of the table of compatibility: refused as the table says, or run once.

::

    pair ─► accepted? ─┬─ no:  the table excludes it, or a fault
                       └─ yes: does the certificate compute with both settings?
                                 ├─ yes: `jaxpipe verify`, all ranks beside one device
                                 └─ no:  a run of four ranks and four steps (`tiny_runs`)

`python -m experiments.verify_bugs.pairs` writes `results/pairs.csv`, a row for each pair as soon as
it is known; a command that was interrupted continues, and tries what was wrong again. `--settings`
runs the pairs of some settings alone. A pair with a setting that the example of the other one
excludes is refused, too: a mesh of `mesh.context` excludes what every mesh does.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from experiments.table import Row, append_csv, read_csv
from jaxpipe.config import Config
from jaxpipe.config.compatibility import EXCLUSIONS, Setting
from jaxpipe.errors import ConfigError, UserError
from jaxpipe.plan import Plan
from jaxpipe.runtime.process.quick_compiles import quick_flags, threads_of_devices
from tests.config.chosen_settings import EXAMPLES, SETTINGS, checked

if TYPE_CHECKING:
    from jaxpipe.runtime.stage.compile_once import CompileOnce

RESULTS = Path(__file__).parent / "results" / "pairs.csv"
NUM_DEVICES = 8
"""Of this process: four ranks of two devices."""

REFUSED, VERIFIED, FAULT = "refused", "verified", "FAULT"

EXCLUDED = {
    frozenset((str(row.first), str(row.second))): (str(row.first), str(row.second))
    for row in EXCLUSIONS
}
"""The pairs that the table excludes, in its order."""
PAIRS = tuple(
    (first, second)
    for first, second in combinations(EXAMPLES, 2)
    # Of one field a configuration has one value.
    if SETTINGS[first].field != SETTINGS[second].field
)

_MOST_COMPILED = 30
"""Pairs after which what they have compiled is dropped."""
_SECTIONS = ("model", "data", "mesh", "train", "optimizer", "loss_scale", "lora", "outer", "comm")
"""Those that decide what a certificate computes."""
_ROUNDED = ("model.param_dtype", "model.compute_dtype", "optimizer.master_weights")
"""Fields that mean nothing in float64."""


def accepted(first: str, second: str) -> tuple[Config, Plan] | None:
    """Return a configuration with two settings, and its plan; None where it is refused.

    Raises:
        UserError: it is refused, and not for two settings that exclude each other.
    """
    try:
        return checked(*(EXAMPLES[name] for name in _ordered(first, second)))
    except ConfigError as refusal:
        if "exclude each other" not in str(refusal):
            raise
        return None


class PairJudge:
    """Judges pairs; of pairs that are the same when they are made smaller, one is verified."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._faults: dict[str, str] = {}
        self._compiler = _compiler()
        self._num_computed = 0

    def outcome(self, first: str, second: str) -> tuple[str, str]:
        """Return the outcome of a pair, and what is wrong with it if it is `FAULT`."""
        try:
            pair = accepted(first, second)
        except UserError as error:
            return FAULT, f"refused, and the table does not say so: {error}"
        is_excluded = frozenset((first, second)) in EXCLUDED
        if pair is None or is_excluded:
            fault = "" if pair is None else "accepted, and the table excludes it"
            return (FAULT, fault) if fault else (REFUSED, "")
        self._forget_some()
        if all(is_covered(SETTINGS[name], *pair) for name in (first, second)):
            fault = self._certified(*pair)
            return (FAULT, fault) if fault else (VERIFIED, "")
        return self._run(*_ordered(first, second))

    def _forget_some(self) -> None:
        """Drop what is compiled from time to time: a process has room for some thousand of them."""
        import jax

        self._num_computed += 1
        if self._num_computed % _MOST_COMPILED == 0:
            self._compiler.forget()
            jax.clear_caches()

    def _run(self, first: str, second: str) -> tuple[str, str]:
        from experiments.verify_bugs.tiny_runs import RunError, train_pair

        try:
            return train_pair(self._folder, first, second, compiler=self._compiler), ""
        except RunError as error:
            return FAULT, str(error)

    def _certified(self, config: Config, plan: Plan) -> str:
        """Return what a certificate has found, or nothing."""
        from jaxpipe.verify.certificate import compared, reference
        from jaxpipe.verify.smaller_plan import shrunk
        from jaxpipe.verify.stand_in import form_of

        small = shrunk(config, plan)
        sections = (getattr(small.config, name) for name in _SECTIONS)
        key = repr((*sections, small.config.run.seed, small.plan))
        if key not in self._faults:
            expected = reference(config, plan, form_of(config))
            certificate = compared(expected, compiler=self._compiler)
            lines = "" if certificate.is_proved else "\n".join(certificate.lines())
            self._faults[key] = lines
        return self._faults[key]


def _compiler() -> "CompileOnce":
    from jaxpipe.runtime.stage.compile_once import CompileOnce  # imports jax

    return CompileOnce()


def is_covered(setting: Setting, config: Config, plan: Plan) -> bool:
    """Return whether a certificate of a configuration computes with a setting of it."""
    from jaxpipe.verify.smaller_plan import shrunk

    if setting.field.startswith("run.") or setting.field in _ROUNDED:
        return False  # ranks are threads that compute in float64
    small = shrunk(config, plan)
    return setting.is_chosen(small.config, small.plan)


def _ordered(first: str, second: str) -> tuple[str, str]:
    """Return a pair in the order of the table: of two values of one field, the later one wins."""
    return EXCLUDED.get(frozenset((first, second)), (first, second))


def _rows(pairs: Iterable[tuple[str, str]], results: Path, folder: Path) -> Iterator[Row]:
    judge = PairJudge(folder)
    for first, second in pairs:
        # Read again for each pair: two commands may share the work.
        if frozenset((first, second)) in _known(results):
            continue
        begin_s = time.perf_counter()
        outcome, fault = judge.outcome(first, second)
        yield {
            "first": first,
            "second": second,
            "table": _in_table({"first": first, "second": second}),
            "outcome": outcome,
            "seconds": time.perf_counter() - begin_s,
            "fault": fault,
        }


def _known(results: Path) -> set[frozenset[str]]:
    rows = read_csv(results) if results.exists() else []
    return {frozenset((row["first"], row["second"])) for row in rows}


def _forget_stale(results: Path) -> None:
    """Remove the rows of what was wrong, and of pairs of which the table says something else."""
    rows = read_csv(results) if results.exists() else []
    current = [row for row in rows if row["outcome"] != FAULT and row["table"] == _in_table(row)]
    if len(current) < len(rows):
        results.unlink()
        for row in current:
            append_csv(row, results)


def _in_table(row: Mapping[str, str]) -> str:
    is_excluded = frozenset((row["first"], row["second"])) in EXCLUDED
    return "excluded" if is_excluded else "combined"


def main(
    *,
    settings: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    without: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    results: Path = RESULTS,
    folder: Path = Path("build/pairs"),
) -> int:
    """Run all pairs that are not known to be right; return how many are wrong.

    Args:
        settings: run the pairs with one of these alone, such as "`lora.rank` > 0"; none is all.
        without: run no pairs with one of these.
        results: the table of outcomes.
        folder: for the datasets and the runs.
    """
    os.environ["XLA_FLAGS"] = quick_flags(os.environ.get("XLA_FLAGS", ""), num_devices=NUM_DEVICES)
    os.environ.update(threads_of_devices(os.environ, num_devices=NUM_DEVICES))
    num_wrong = 0
    _forget_stale(results)
    chosen = set(settings or EXAMPLES)
    meant = [pair for pair in PAIRS if set(pair) & chosen and not set(pair) & set(without)]
    meant.sort(key=lambda pair: frozenset(pair) not in EXCLUDED)  # refusals take no time
    for row in _rows(meant, results, folder):
        append_csv(row, results)
        if row["outcome"] == FAULT:
            num_wrong += 1
            print(row, flush=True)
    return num_wrong


if __name__ == "__main__":
    raise SystemExit(min(1, tyro.cli(main)))
