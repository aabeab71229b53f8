"""Scores of the harness's tasks are those of an oracle that computes one text after the other."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docs.examples import tiny_instruct_model
from jaxpipe.cli.main import main
from jaxpipe.errors import ConfigError
from jaxpipe.inference.harness_model import CheckpointModel, generation_of
from jaxpipe.inference.task_scores import TaskScore, task_scores
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.runtime.checkpoint import Checkpoint, latest, open_checkpoint
from tests.oracles import numpy_llama

pytestmark = pytest.mark.slow

TASKS = Path(__file__).parent / "tasks"
NAMES = ("talk_choices", "talk_texts", "talk_answers")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("model")
    tiny_instruct_model.main(folder)
    assert main(["import", str(folder / "model"), "-o", str(folder / "run")]) == 0
    return open_checkpoint(latest(folder / "run"))


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> CheckpointModel:
    return CheckpointModel(checkpoint)


@pytest.fixture(scope="module")
def scores(
    checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], TaskScore]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        patch.chdir(Path(__file__).parents[2])  # where the tasks look for their data
        rows = task_scores(checkpoint, NAMES, folder=TASKS)
    return {(row.task, row.metric): row for row in rows}


@functools.cache
def logs(model: CheckpointModel, tokens: tuple[int, ...]) -> np.ndarray:
    """Return the log-probabilities after each token, in float64, one text at a time."""
    params: Any = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model.params)
    config = model.model.config  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(config, LlamaConfig)
    (logits,) = numpy_llama.logits(config, params, np.array([tokens]))
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def likelihood(model: CheckpointModel, context: Sequence[int], answer: Sequence[int]) -> float:
    text = (*context, *answer)[-(model.model.sequence + 1) :]
    rows = logs(model, text[:-1])
    return sum(rows[n - 1, text[n]] for n in range(len(text) - len(answer), len(text)))


def records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (TASKS / "talk.jsonl").read_text().splitlines()]


def test_choices_are_those_of_the_oracle(
    model: CheckpointModel, scores: dict[tuple[str, str], TaskScore]
) -> None:
    right = []
    for record in records():
        question = model.tok_encode(record["question"])
        whole = [model.tok_encode(f"{record['question']} {c}") for c in record["choices"]]
        likely = [likelihood(model, question, text[len(question) :]) for text in whole]
        right.append(int(np.argmax(likely)) == record["answer"])
    assert scores["talk_choices", "acc"].value == pytest.approx(np.mean(right))
    assert scores["talk_choices", "acc"].error is not None


def test_bits_of_texts_are_those_of_the_oracle(
    model: CheckpointModel, scores: dict[tuple[str, str], TaskScore]
) -> None:
    texts = [f"{record['question']} {record['said']}" for record in records()]
    tokens = [model.tok_encode(text) for text in texts]
    nats = sum(likelihood(model, [model.prefix_token_id], text) for text in tokens)
    expected = -nats / np.log(2) / sum(len(text.encode()) for text in texts)
    assert scores["talk_texts", "bits_per_byte"].value == pytest.approx(expected, rel=1e-5)


def test_answers_are_the_greedy_text_up_to_a_stop(
    model: CheckpointModel, scores: dict[tuple[str, str], TaskScore]
) -> None:
    question = model.tok_encode("How are you?")
    text = list(question)
    for _ in range(6):
        text.append(int(np.argmax(logs(model, tuple(text))[-1])))
    said = model.tokens.decode(np.array(text[len(question) :]))
    stop = said[3:5]
    request = SimpleNamespace(args=("How are you?", {"until": [stop], "max_gen_toks": 6}))
    assert model.generate_until([request]) == [said[: said.index(stop)]]
    # Random weights do not answer, and an answer is compared as a whole.
    assert scores["talk_answers", "exact_match"].value == 0.0


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_likelihood_is_that_of_the_text_alone(
    model: CheckpointModel, data: st.DataObject
) -> None:
    token = st.integers(0, model.model.vocabulary - 1)
    tokens = st.lists(token, min_size=1, max_size=20)
    texts = st.tuples(st.none(), tokens, tokens)
    _check_likelihoods(model, data.draw(st.lists(texts, min_size=1, max_size=3)))


def test_a_text_that_is_too_long_loses_its_begin(model: CheckpointModel) -> None:
    sequence = model.model.sequence
    _check_likelihoods(model, [(None, [3] * sequence, [4, 5])])
    with pytest.raises(ConfigError, match=f"`model.sequence` .{sequence}. must be at least the"):
        _check_likelihoods(model, [(None, [3], [4] * (sequence + 1))])


def _check_likelihoods(
    model: CheckpointModel, requests: list[tuple[None, list[int], list[int]]]
) -> None:
    answers = model._loglikelihood_tokens(requests)  # pyright: ignore[reportPrivateUsage]
    for (_, context, answer), (log, _) in zip(requests, answers, strict=True):
        assert log == pytest.approx(likelihood(model, context, answer), rel=1e-5, abs=1e-4)


def test_what_a_model_cannot_do_is_refused(
    model: CheckpointModel, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="`generation_kwargs` of a task must be among until,"):
        generation_of({"until": ["a"], "num_beams": 4})
    with pytest.raises(ConfigError, match="`generation_kwargs` of a task: `top_k` must be at"):
        generation_of({"do_sample": True, "top_k": 0})
    request = SimpleNamespace(args=("How are you?", {"until": []}))
    with pytest.raises(ConfigError, match="`max_gen_toks` of a task must be below"):
        model.generate_until([request])
    monkeypatch.chdir(TASKS)  # without the data
    with pytest.raises(ConfigError, match="`--tasks` talk_choices cannot be loaded by the har"):
        task_scores(checkpoint, ["talk_choices"], folder=TASKS)


def test_a_question_is_a_message_of_the_chat_template(model: CheckpointModel) -> None:
    turns = [{"role": "user", "content": "How are you?"}]
    text = model.apply_chat_template(turns)
    assert text.endswith("<|im_start|>user\nHow are you?<|im_end|>\n<|im_start|>assistant\n")
    assert model.tok_encode(text)[0] == model.prefix_token_id
    begun = [*turns, {"role": "assistant", "content": "I am"}]
    assert model.apply_chat_template(begun, add_generation_prompt=False) == f"{text}I am"
