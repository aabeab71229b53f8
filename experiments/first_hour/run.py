"""Repeat the first hour: `python -m experiments.first_hour.run [PART ...]`, by default all parts.

Prints a table for each part, and writes it to `results/`. The exit code is 1 if an attack succeeds
or a mistake is not answered by one line.
"""

import argparse
import os
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from experiments.first_hour.attacks import ATTACKS, Attack, judge
from experiments.first_hour.mistakes import Mistake, answer, holds, prepare
from experiments.first_hour.sandbox import Sandbox
from experiments.first_hour.surroundings import trials
from experiments.first_hour.trial import Trial, describe
from experiments.first_hour.trial import holds as trial_holds
from experiments.table import Row, markdown, write_csv

_HERE = Path(__file__).parent
_NUM_AT_ONCE = 2
_TRAINS_WITHIN_S = 400.0
_LONGEST = 110
"""Characters of an answer in the table; the files have all of it."""


def main() -> None:
    """Try the named parts, by default all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"{', '.join(_PARTS)}; default: all")
    parts = parser.parse_args().parts or [*_PARTS]
    begin_s, passed = time.perf_counter(), True
    with tempfile.TemporaryDirectory() as name:
        for part in parts:
            (Path(name) / part).mkdir()
            rows = _PARTS[part](Path(name) / part)
            passed &= all(row["holds"] != "NO" for row in rows)
            (_HERE / "results").mkdir(exist_ok=True)
            write_csv(rows, _HERE / "results" / f"{part}.csv")
            print(markdown([{k: str(v)[:_LONGEST] for k, v in row.items()} for row in rows]))
    print(f"\n{time.perf_counter() - begin_s:.0f} s")
    sys.exit(not passed)


def _attacks(folder: Path) -> list[Row]:
    with ThreadPoolExecutor(_NUM_AT_ONCE) as executor:
        numbered = [(folder / f"{number}" / "box", each) for number, each in enumerate(ATTACKS)]
        return list(executor.map(lambda pair: _attack(*pair), numbered))


def _attack(folder: Path, attack: Attack) -> Row:
    folder.mkdir(parents=True)
    box = Sandbox(folder)
    ended = attack.run(box)
    holds, today = judge(attack, box, ended)
    return {
        "attack": _plain(attack.what),
        "before": attack.before,
        "today": _plain(today.replace(str(folder), "FOLDER")),
        "seconds": f"{ended.seconds:.1f}",
        "holds": "yes" if holds else "NO",
    }


def _mistakes(folder: Path) -> list[Row]:
    given = tomllib.loads((_HERE / "mistakes.toml").read_text())["mistakes"]
    box = Sandbox(folder)
    prepare(box)
    with ThreadPoolExecutor(_NUM_AT_ONCE) as executor:
        return list(executor.map(lambda each: _mistake(box, Mistake(**each)), given))


def _mistake(box: Sandbox, mistake: Mistake) -> Row:
    ended = answer(box, mistake)
    return {
        "mistake": mistake.what,
        "before": mistake.before,
        "today": _plain(str(ended).replace(str(box.folder), "FOLDER")),
        "seconds": f"{ended.seconds:.1f}",
        "holds": "yes" if holds(mistake, ended) else "NO",
    }


def _surroundings(folder: Path) -> list[Row]:
    all_trials = trials(folder / "shared")
    with ThreadPoolExecutor(_NUM_AT_ONCE) as executor:
        numbered = [(folder / f"{number}", each) for number, each in enumerate(all_trials)]
        return list(executor.map(lambda pair: _trial(*pair), numbered))


def _trial(folder: Path, trial: Trial) -> Row:
    row = {"mistake": trial.what, "before": trial.before}
    if trial.needs_root and os.geteuid() != 0:
        return {**row, "today": "needs root", "seconds": "", "holds": "not tried"}
    folder.mkdir()
    ended = trial.run(Sandbox(folder, limit_s=_TRAINS_WITHIN_S))
    return {
        **row,
        "today": _plain(describe(trial, ended).replace(str(folder), "FOLDER")),
        "seconds": f"{ended.seconds:.1f}",
        "holds": "yes" if trial_holds(trial, ended) else "NO",
    }


def _plain(text: str) -> str:
    return text.replace(sys.executable, "PYTHON").replace("|", "/")


_PARTS: dict[str, Callable[[Path], list[Row]]] = {
    "attacks": _attacks,
    "mistakes": _mistakes,
    "surroundings": _surroundings,
}


if __name__ == "__main__":
    main()
