"""What adapters and frozen parameters exclude, and what a resumed run keeps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxpipe.config import config_from, describe
from jaxpipe.config.tuning import check_same_tuning
from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.checkpoint import Checkpoint
from tests.runtime.training import tiny_tree

LORA = {"rank": 2}
NOWHERE = Path("nowhere")


def tree_of(**sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return tiny_tree(NOWHERE, NOWHERE, **sections)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"train": {"frozen": ["blocks.0.*"]}, "optimizer": {"sharded": True}},
            r"`train.frozen` .blocks\.0\.\*. matches some layers of attention.project.bias ",
        ),
        ({"lora": {"rank": -1}}, "`lora.rank` must be from 0 to 65536, not -1"),
        ({"lora": {"ranks": 1}}, "unknown key `lora.ranks`; did you mean `lora.rank`"),
    ],
)
def test_what_cannot_be_combined_is_refused(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_from(config_from(tree_of(**sections)))


def test_a_run_continues_with_what_it_trains() -> None:
    lora, frozen, plain = (
        config_from(tree_of(**sections))
        for sections in ({"lora": LORA}, {"train": {"frozen": ["embed.*"]}}, {})
    )
    saved = Checkpoint(folder=NOWHERE, step=2, metadata=describe(lora), tensors={})
    check_same_tuning(lora, saved)
    with pytest.raises(
        CheckpointError, match=r"`lora.rank` .0. must be as in the checkpoint nowhere, 2"
    ):
        check_same_tuning(plain, saved)
    other = replace(saved, metadata=describe(plain))
    check_same_tuning(plain, other)
    with pytest.raises(
        CheckpointError, match=r"`lora.rank` .2. must be as in the checkpoint nowhere, 0"
    ):
        check_same_tuning(lora, other)
    with pytest.raises(
        CheckpointError, match=r"`train.frozen` .*embed\.\*.* must be as in the check"
    ):
        check_same_tuning(frozen, other)
    check_same_tuning(lora, replace(other, step=0))  # an import
