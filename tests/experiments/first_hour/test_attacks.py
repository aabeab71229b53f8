"""The attacks of the first hour, each against the installed command."""

import tomllib
from pathlib import Path

import pytest

from experiments.first_hour import run
from experiments.first_hour.attacks import ATTACKS, Attack, judge
from experiments.first_hour.mistakes import Mistake
from experiments.first_hour.sandbox import MARKER, Ended, Sandbox
from experiments.first_hour.surroundings import trials
from experiments.first_hour.trial import Trial
from experiments.first_hour.trial import holds as trial_holds
from experiments.table import read_csv

RESULTS = Path(run.__file__).parent / "results"


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run whose checkpoint was imported."""
    box = Sandbox(tmp_path_factory.mktemp("imported"))
    return box.checkpoint().parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.what)
def test_every_attack_fails(attack: Attack, imported: Path, tmp_path: Path):
    box = Sandbox(tmp_path / "box", imported=imported)
    box.folder.mkdir()
    assert judge(attack, box, attack.run(box))[0]


def test_an_attack_that_succeeds_is_seen(tmp_path: Path):
    box = Sandbox(tmp_path / "box")
    box.folder.mkdir()
    refused = Ended(code=2, seconds=0.1, out="", err="jaxpipe: no\n")
    assert judge(ATTACKS[0], box, refused) == (True, "refused: no")
    assert not judge(ATTACKS[0], box, Ended(code=None, seconds=60.0, out="", err=""))[0]
    assert not judge(ATTACKS[0], box, Ended(code=0, seconds=0.1, out="\x1b[2J", err=""))[0]
    assert not judge(ATTACKS[0], box, Ended(code=1, seconds=0.1, out="", err="Trace\nback\n"))[0]
    box.run("sh", "-c", box.touching())
    assert (box.folder / MARKER).exists()
    assert judge(ATTACKS[0], box, refused) == (False, "EXECUTED")


def test_the_results_are_of_these_attacks_and_mistakes():
    attacks, mistakes = read_csv(RESULTS / "attacks.csv"), read_csv(RESULTS / "mistakes.csv")
    assert [row["attack"] for row in attacks] == [attack.what for attack in ATTACKS]
    given = tomllib.loads((RESULTS.parent / "mistakes.toml").read_text())["mistakes"]
    assert [row["mistake"] for row in mistakes] == [Mistake(**each).what for each in given]
    around = read_csv(RESULTS / "surroundings.csv")
    all_trials = trials(RESULTS)
    assert [row["mistake"] for row in around] == [trial.what for trial in all_trials]
    assert {row["holds"] for row in attacks + mistakes + around} == {"yes"}


@pytest.mark.parametrize(
    ("code", "err", "is_right"),
    [
        (2, "jaxpipe: there is no such field\n", True),
        (1, "jaxpipe: there is no such field\n", False),
        (2, "jaxpipe: another rule\n", False),
        (2, "a line\n" * 9 + "jaxpipe: there is no such field\n", False),
        (None, "jaxpipe: there is no such field\n", False),
    ],
)
def test_an_answer_has_its_code_its_words_and_few_lines(code: int | None, err: str, is_right: bool):
    ended = Ended(code=code, seconds=1.0, out="", err=err)
    words = ("no such field",)
    trial = Trial(what="a typo", before="+", run=lambda _: ended, code=2, words=words)
    assert trial_holds(trial, ended) is is_right
