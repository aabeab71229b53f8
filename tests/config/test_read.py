"""Reading a configuration: what it says, what it leaves out, and the way back."""

import dataclasses
import tomllib
from pathlib import Path

import pytest

from jaxpipe.config import config_from, load_config, to_tree
from jaxpipe.config.build_job import scales_loss
from jaxpipe.config.read import FREE_FIELDS, config_of_settings
from jaxpipe.errors import ConfigError
from jaxpipe.models import presets
from jaxpipe.plan import PlanConfig
from jaxpipe.schedule import ScheduleKind
from jaxpipe.topo.toml_text import toml_text
from tests.runtime.training import tiny_tree

QUICKSTART = Path("experiments/quickstart/two_region.toml")
LEAST = {"run": {"folder": "r"}, "data": {"folder": "d"}, "model": {"preset": "tiny"}}


def test_what_is_left_out_has_a_default():
    config = config_from(LEAST)
    assert config.plan.cluster == "this-machine"
    assert not config.plan.is_decided
    assert config.train.sequence is None


@pytest.mark.parametrize("preset", presets())
def test_a_preset_can_be_changed(preset: str):
    config = config_from({**LEAST, "model": {"preset": preset, "logits_bytes": 4096}})
    same = config_from({**LEAST, "model": {"preset": preset}})
    assert to_tree(config)["model"]["logits_bytes"] == 4096
    assert config.model.num_layers == same.model.num_layers


@pytest.mark.parametrize(
    "tree",
    [LEAST, {**LEAST, "plan": {"file": "plan.toml"}}, tomllib.loads(QUICKSTART.read_text())],
)
def test_trees_and_configurations_are_two_forms_of_one_thing(tree: dict):
    config = config_from(tree)
    assert config_from(to_tree(config)) == config


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("[1, 3]", (1, 3))],
)
def test_settings_are_toml(tmp_path: Path, text: str, value: object):
    path = tmp_path / "c.toml"
    path.write_text('[run]\nfolder="r"\n[data]\nfolder="d"\n[model]\npreset="tiny"\n')
    if isinstance(value, int):
        assert load_config(path, [f"train.steps={text}"]).train.steps == value
    else:
        assert load_config(path, [f"plan.cut={text}"]).plan.cut == value


def test_words_need_no_quotes():
    config = load_config(QUICKSTART, ["plan.schedule=gpipe", "plan.cluster=laptop"])
    assert config.plan.schedule is ScheduleKind.GPIPE
    assert config.plan.cluster == "laptop"


@pytest.mark.parametrize("digits", ["\u0661", "\uff11", "\u00b2"])
def test_numbers_have_the_digits_of_toml(digits: str):
    with pytest.raises(ConfigError, match=r"`train\.steps`: it must be a whole number, not text"):
        load_config(QUICKSTART, [f"train.steps={digits}"])


@pytest.mark.parametrize(
    ("enabled", "compute_dtype", "expected"),
    [
        (None, "float16", True),
        (None, "bfloat16", False),
        (None, "float32", False),
        (True, "float32", True),
        (False, "float16", False),
    ],
)
def test_the_loss_is_scaled_where_activations_are_float16_or_as_told(
    enabled: bool | None, compute_dtype: str, expected: bool
):
    model = {"preset": "tiny", "compute_dtype": compute_dtype}
    loss_scale = {} if enabled is None else {"enabled": enabled}
    config = config_from({**LEAST, "model": model, "loss_scale": loss_scale})
    assert scales_loss(config) == expected


@pytest.mark.parametrize(
    "field", [f"{section}.{name}" for section, names in FREE_FIELDS.items() for name in names]
)
def test_free_is_not_set(field: str) -> None:
    freed = load_config(QUICKSTART, [f"{field}=free"])
    section, _, name = field.partition(".")
    tree = tomllib.loads(QUICKSTART.read_text())
    tree[section].pop(name, None)
    assert freed == config_from(tree)


def test_what_has_no_default_in_the_plan_may_be_free() -> None:
    unset = {f.name for f in dataclasses.fields(PlanConfig) if f.default in (None, ())}
    assert unset - {"file", "schedule_file"} == set(FREE_FIELDS["plan"])


def test_only_the_planner_s_fields_may_be_free() -> None:
    with pytest.raises(ConfigError, match=r"`train\.steps`: .* whole number.*; it is 'free'"):
        load_config(QUICKSTART, ["train.steps=free"])


def test_a_setting_is_text() -> None:
    with pytest.raises(
        ConfigError, match=r"^`--set` takes text in UTF-8, and 'run\.folder=a.udcff'"
    ):
        config_of_settings(["model.preset=tiny", "run.folder=a\udcff"])


def test_a_setting_cannot_open_a_value():
    with pytest.raises(ConfigError, match="`seed` is a value, not a section"):
        load_config(QUICKSTART, ["run.seed.deep=3"])


def test_a_byte_order_mark_is_accepted(tmp_path: Path, dataset: Path) -> None:
    text = toml_text(tiny_tree(tmp_path / "run", dataset))
    (tmp_path / "marked.toml").write_text(text, encoding="utf-8-sig")
    (tmp_path / "plain.toml").write_text(text, encoding="utf-8")
    assert load_config(tmp_path / "marked.toml") == load_config(tmp_path / "plain.toml")


def test_data_may_be_a_mixture():
    text = '[[sources]]\nfolder = "a"\nweight = 3\n\n[[sources]]\nfolder = "b"\n'
    config = config_from({**LEAST, "data": tomllib.loads(text)})
    assert config.data.folders == ("a", "b")
    assert config.data.weights == (3.0, 1.0)
    assert config_from(to_tree(config)) == config
    kept = tomllib.loads(toml_text({"data": {"sources": to_tree(config)["data"]["sources"]}}))
    assert config_from({**LEAST, **kept}).data == config.data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "`data.folder` is missing; name a dataset, or give `sources`"),
        ({"folder": "a", "sources": [{"folder": "b"}]}, "`sources` .1 tables. exclude each other"),
        (
            {"sources": [{"folder": "b"}, {"folder": "b"}]},
            "`data.sources` has a folder twice .b, b.;",
        ),
        (
            {"sources": [{"folder": "b", "weight": 0}]},
            "`weight` must be above 0 and at most .*, not 0",
        ),
        ({"sources": [{"folder": ""}]}, "`folder` must be a path of 1"),
        (
            {"sources": [{"folder": "b", "wieght": 2}]},
            r"`data\.sources\[0\]\.wieght`; did .*weight",
        ),
        ({"sources": ["b"]}, r"`data.sources\[0\]`"),
    ],
)
def test_a_wrong_mixture_is_refused(data: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        config_from({**LEAST, "data": data})
