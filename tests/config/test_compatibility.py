"""Each row of the table: the two settings are refused together, and either is accepted alone."""

import pytest

from jaxpipe.config import config_from, job_from
from jaxpipe.config.compatibility import EXCLUSIONS, Exclusion, check_compatible
from jaxpipe.errors import ConfigError
from tests.config.chosen_settings import EXAMPLES, NOWHERE, SETTINGS, checked
from tests.runtime.training import tiny_tree


def _ids(row: Exclusion) -> str:
    return f"{row.first} and {row.second}"


@pytest.mark.parametrize("row", EXCLUSIONS, ids=_ids)
def test_settings_that_exclude_each_other_are_refused_with_their_row(row: Exclusion) -> None:
    # The second wins where both have the same field.
    examples = EXAMPLES[str(row.first)], EXAMPLES[str(row.second)]
    with pytest.raises(ConfigError) as refusal:
        checked(*examples)
    message = str(refusal.value)
    assert message.startswith(f"`{row.first.field}` (")
    assert f" and `{row.second.field}` (" in message
    assert message.endswith(f") exclude each other: {row.why}; {row.fix}")


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_setting_alone_is_accepted(name: str) -> None:
    config, plan = checked(EXAMPLES[name])
    assert SETTINGS[name].is_chosen(config, plan)


def test_settings_of_the_plan_are_free_without_one() -> None:
    tree = tiny_tree(NOWHERE, NOWHERE, comm={"gradients": "int8"}, plan={"all_reduce": "ring"})
    check_compatible(config_from(tree))


def test_each_setting_has_an_example() -> None:
    assert set(SETTINGS) == set(EXAMPLES)


def test_the_table_names_each_pair_once() -> None:
    pairs = [frozenset((str(row.first), str(row.second))) for row in EXCLUSIONS]
    assert len(set(pairs)) == len(pairs)
    assert all(len(pair) == 2 for pair in pairs)


def test_a_job_that_no_command_has_checked_is_refused() -> None:
    context = EXAMPLES["`mesh.context` > 1"]
    _, plan = checked(context)
    tree = tiny_tree(NOWHERE, NOWHERE, **context.sections, model={"dropout": 0.1, "num_heads": 4})
    words = r"`mesh.context` \(2\) and `model.dropout` \(0.1\) exclude each other"
    with pytest.raises(ConfigError, match=words):
        job_from(config_from(tree), plan)
