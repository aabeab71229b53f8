"""Run the commands of the page on instruct models, and ask transformers and the harness the same.

    python -m experiments.serving.run --python PYTHON [--path FOLDER]

PYTHON has torch, transformers and lm_eval; FOLDERs come first on its PYTHONPATH.
"""

import csv
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro

from docs.examples.tiny_instruct_model import TALK
from experiments.other_python import answer_of
from jaxpipe.inference.sample_texts import Chat, sample_texts
from jaxpipe.inference.task_scores import task_scores
from jaxpipe.runtime.checkpoint import latest, open_checkpoint
from tests.docs.test_instruct_page import PAGE, sessions

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
TASKS = ROOT / "tests/inference/tasks"
_THEIRS = Path(__file__).with_name("theirs.py")
NAMES = ("talk_choices", "talk_texts", "talk_answers")
QUESTIONS = (*TALK, "What is fine?", "Are you the capital of Paris?")
NUM_TOKENS = 20
TIMEOUT_S = 600.0
TOLERANCE = 1e-4
"""Of a score: sums of float32 products have another order."""


def main(python: Path, path: Sequence[Path] = ()) -> int:
    """Write a row for each text and each score; return 1 if one differs."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for words, _ in sessions(PAGE.read_text()):
            _run(words, folder)
        request = {"questions": QUESTIONS, "num_tokens": NUM_TOKENS, "tasks": NAMES}
        theirs = asked({**request, "folder": str(folder / "mine/answers")}, python, path)
        print(theirs["versions"])
        run = folder / "mine/tuned"
        answers = texts(run, QUESTIONS, theirs["texts"], num_tokens=NUM_TOKENS)
        results = scores(run, NAMES, theirs["scores"])
    _write("texts.csv", answers)
    _write("scores.csv", results)
    return int(not all(row["equal"] for row in (*answers, *results)))


def _run(words: Sequence[str], folder: Path) -> None:
    """Run a command of the page in the folder."""
    program = {"jaxpipe": [sys.executable, "-P", "-m", "jaxpipe"], "python": [sys.executable]}
    arguments = [str(ROOT / word) if word.startswith("docs/") else word for word in words[1:]]
    subprocess.run(
        [*program.get(words[0], [words[0]]), *arguments], cwd=folder, check=True, timeout=TIMEOUT_S
    )


def asked(request: Mapping[str, Any], python: Path, path: Sequence[Path] = ()) -> dict[str, Any]:
    """Return what `theirs.py` answers: texts and scores of the folder that the request names.

    Raises:
        subprocess.SubprocessError: it failed, or took too long.
    """
    given = {**request, "task_folder": str(TASKS)}
    return answer_of(python, _THEIRS, given, timeout_s=TIMEOUT_S, path=path)


def texts(
    run: Path, questions: Sequence[str], theirs: Sequence[str], *, num_tokens: int
) -> list[dict[str, Any]]:
    """Return a row for each question: the answer of a run, theirs, and whether they are equal."""
    ours = sample_texts(latest(run), questions, tokens=num_tokens, temperature=0.0, chat=Chat())
    return [
        {"question": question, "jaxpipe": here, "transformers": there, "equal": here == there}
        for question, here, there in zip(questions, ours, theirs, strict=True)
    ]


def scores(run: Path, tasks: Sequence[str], theirs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each score of a run, with the chat template and without, beside theirs."""
    checkpoint = open_checkpoint(latest(run))
    rows = []
    for chat in (False, True):
        for score in task_scores(checkpoint, tasks, folder=TASKS, chat=chat):
            there = theirs[str(chat)][score.task][f"{score.metric},{score.answers}"]
            equal = abs(score.value - there) <= TOLERANCE * max(1.0, abs(there))
            rows.append(
                {
                    "task": score.task,
                    "chat": chat,
                    "metric": score.metric,
                    "jaxpipe": f"{score.value:.6f}",
                    "hf": f"{there:.6f}",
                    "equal": equal,
                }
            )
    return rows


def _write(name: str, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        print(row)
    with (RESULTS / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
