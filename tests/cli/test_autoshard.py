"""`jaxpipe autoshard` plans and compiles a sharded step, and explains wrong input on one line."""

import json
import re
from pathlib import Path

import pytest

from jaxpipe.cli.main import main
from jaxpipe.plan import Sharing, read_plan
from jaxpipe.topo import load

pytestmark = pytest.mark.slow

_STEP = ("--model", "tiny", "--layers", "1", "--batch", "2", "--dtype", "float32")
_SEARCH = ("autoshard", "search", "--mesh", "2")
_MEGATRON = ("autoshard", "megatron")
_COMPILE = ("autoshard", "compile")
_EXECUTE = ("autoshard", "execute")


@pytest.mark.parametrize("mesh", ["0", "-1", "1000000000"])
def test_a_mesh_of_no_possible_size_is_refused(mesh: str, capsys: pytest.CaptureFixture[str]):
    assert main(["autoshard", "search", "--model", "tiny", "--mesh", mesh]) == 2
    shown = capsys.readouterr().err
    assert "`--mesh` must be from 1 to 1" in shown
    assert f", not {mesh}" in shown


def test_a_strategy_is_drawn_written_and_used_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, words = tmp_path / "strategy.json", [*_STEP, "--batch", "8", "--draw"]
    assert main([*_SEARCH, *words, "--out", str(out)]) == 0
    first = capsys.readouterr().out
    assert "strategy      found on" in first
    assert "(simulated for v100)" in first
    assert f"strategy -> {out}" in first
    assert re.search(r"\nstate\.params\.blocks\.\*\.mlp\.up\.kernel +(?!S1R )", first)
    assert "all-reduce   " in first
    assert main([*_COMPILE, str(out), *words]) == 0
    again = capsys.readouterr().out
    timed = ("took", "strategy ->", "next:")
    kept = [
        [each for each in text.splitlines() if each and not each.startswith(timed)]
        for text in (first, again)
    ]
    assert [each.split(",")[0] for each in kept[0]] == [each.split(",")[0] for each in kept[1]]


def test_a_strategy_by_hand_is_used_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "strategy.json")
    told = []
    for words in ([*_MEGATRON, "--op", "2", "--out", out], [*_COMPILE, out]):
        assert main([*words, *_STEP, "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out))
    first, again = told
    assert (first["dp"], first["op"], first["truth"]) == (1, 2, "simulated")
    assert first["counts"]["num_comm"] >= first["counts"]["allreduce"] > 0
    assert first["collective_bytes"]["all-reduce"] > 0
    assert first["arguments_bytes"] > 0
    assert first["predicted_s"] > 0
    assert first["counts"] == again["counts"]
    assert first["strategy"] == again["strategy"]


def test_pins_decide_a_sharding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pins = tmp_path / "pins.toml"
    pins.write_text('[arguments]\n"state.params.blocks.*.mlp.up.kernel" = "S1R"\n')
    assert main([*_SEARCH, *_STEP, "--pins", str(pins), "--draw"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (drawn,) = (each for each in lines if each.startswith("state.params.blocks.*.mlp.up.kernel"))
    assert drawn.split()[1] == "S1R"  # a free search does not choose it


def test_xla_derives_the_collectives(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*_MEGATRON, *_STEP, "--op", "2", "--partitioner", "gspmd", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["num_comm"] > 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("megatron --dp 0", "`--dp` must be from 1 to 1,000,000,000, not 0"),
        (
            "megatron --model tiny --op 2 --tables columns",
            "`--tables` columns is for `alpa-` models",
        ),
        (
            "megatron --model alpa-125m --dp 2 --tables columns",
            "`alpa-` models with `--dp 1`, not for alpa-125m with `--dp` 2",
        ),
        (
            "megatron --model alpa-125m --op 2 --tables columns --partitioner gspmd",
            "leave `--partitioner gspmd` out",
        ),
        ("megatron --dp 4 --batch 6", "`--batch` must be a multiple of `--dp`: 6 is not one of 4"),
        ("compile none.json", "cannot read the strategy none.json"),
        ("execute none.json --steps 0", "`--steps` must be from 1 to 1,000,000,000, not 0"),
        ("search --pins none.toml", "cannot read the pins none.toml"),
        (
            "search --model tiny --dtype bfloat16",
            "`--dtype` must be a format whose speed on the target is known: float16, float32, not",
        ),
        ("search --model abacus", "`--model` must be a known name, not 'abacus'"),
    ],
)
def test_wrong_input(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["autoshard", *words.split()]) == 2
    assert told in capsys.readouterr().err


def test_pins_that_suit_no_mesh_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pins.toml").write_text('[arguments]\n"state.parms.*" = "RR"\n')
    assert main([*_SEARCH, *_STEP, "--pins", str(tmp_path / "pins.toml")]) == 2
    assert "`arguments.state.parms.*` pins nothing" in capsys.readouterr().err


def test_tables_by_columns_are_gathered_and_the_strategy_is_used_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = ("--model", "alpa-125m", "--layers", "1", "--batch", "1", "--dtype", "float32", "--json")
    columns = ("--tables", "columns", "--out", str(tmp_path / "columns.json"))
    by_columns = (*_MEGATRON, "--op", "2", *columns)
    told = []
    for words in ([*_MEGATRON, "--op", "2"], by_columns, [*_COMPILE, columns[-1]]):
        assert main([*words, *step]) == 0
        told.append(json.loads(capsys.readouterr().out)["counts"])
    by_rows, first, again = told
    assert first == again
    assert first["allreduce"] == by_rows["allreduce"] - 1
    assert first["allgather"] == by_rows["allgather"] + 2


_BY_HAND = "autoshard megatron --model tiny --layers 1 --batch 4 --dtype float32 --dp 2"


def test_microbatches_reduce_gradients_once_and_a_strategy_by_hand_is_executed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts, out = [], str(tmp_path / "strategy.json")
    for options in (("-o", out), ("--microbatches", "2", "--duplex")):
        assert main([*_BY_HAND.split(), "--zero", "3", *options, "--json"]) == 0
        counts.append(json.loads(capsys.readouterr().out)["counts"])
    whole, halves = counts
    assert halves["reducescatter"] == whole["reducescatter"] > 0
    assert halves["allreduce"] <= whole["allreduce"]
    assert main([*_EXECUTE, out, *_STEP, "--batch", "4"]) == 0
    said = capsys.readouterr().out
    assert "executed      2 steps on emulated devices, one program" in said
    assert "gradients differ by at most" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--microbatches 3", "`--microbatches` must divide `--batch`: 3 does not divide 4"),
        ("--microbatches 4 --duplex", "give `--microbatches 2`, not 4"),
        ("--microbatches 2 --partitioner gspmd", "leave `--partitioner gspmd` out"),
        ("--zero 2 --reduce-scatter", "`--reduce-scatter` is `--zero 2`"),
    ],
)
def test_what_microbatches_cannot_be_is_refused(
    options: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*_BY_HAND.split(), *options.split()]) == 2
    assert words in capsys.readouterr().err


_STAGED = "autoshard stages --model alpa-125m --layers 2 --mesh 2 --batch 8"


def test_stages_are_searched_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "stages.json"
    assert main([*_STAGED.split(), "--draw", "-o", str(out)]) == 0
    text = capsys.readouterr().out
    assert "(simulated for v100)" in text
    assert "to run it     " in text
    found = json.loads(out.read_text())
    layers = [each["layers"] for each in found["stages"]]
    assert (layers[0][0], layers[-1][1]) == (0, 2)
    assert found["predicted_s"] > 0
    assert found["peak_bytes"] > found["search_s"] > 0


def test_unlike_stages_become_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "plan.toml", tmp_path / "stages.json"
    options = ["--mesh", "3", "--batch", "32", "--remat", "--layers", "4"]
    files = ["--plan", str(path), "-o", str(out)]
    assert main([*_STAGED.split(), *options, *files]) == 0
    assert f'[plan] file = "{path}", cluster = "homogeneous:' in capsys.readouterr().out
    found = json.loads(out.read_text())
    plan = read_plan(path, load(found["cluster"]))
    assert plan.sharing is Sharing.DATA
    assert plan.groups == tuple(tuple(range(*each["devices"])) for each in found["stages"])
    assert {len(group) for group in plan.groups} == {1, 2}
    assert (sum(plan.pipelines[0].cut), plan.batch) == (4, 32)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            "--model tiny",
            "`--model` must be one of the `alpa-` presets, whose costs are known, not",
        ),
        ("--batch 0", "`--batch` must be from 1 to 1,000,000,000, not 0"),
        ("--dtype bfloat16", "`--dtype` must be a format whose speed on the target is known"),
    ],
)
def test_stages_that_cannot_be_searched_are_refused(
    options: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*_STAGED.split(), *options.split()]) == 2
    assert words in capsys.readouterr().err


_FOUND = "autoshard duplex --model gpt-moe-tiny --layers 1 --dtype float32 --batch 8"


@pytest.fixture
def duplex_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The strategy for two devices whose all-reduces are slow."""
    links = tmp_path / "links.toml"
    links.write_text(
        "[slow]\ndevices = 2\nall_gather = 1e6\nall_reduce = 1e6\nreduce_scatter = 1e6\n"
        "all_to_all = 1e12\n"
    )
    out = tmp_path / "found.json"
    assert main([*_FOUND.split(), "--links", str(links), "-o", str(out)]) == 0
    capsys.readouterr()
    return str(out)


_ROUTED = ("--model", "gpt-moe-tiny", "--layers", "1", "--dtype", "float32", "--batch", "8")


@pytest.mark.deep  # its gradients: tests/baselines/autoshard/duplex_step/test_realize.py
def test_what_the_duplex_search_found_runs(
    duplex_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*_EXECUTE, duplex_file, *_ROUTED, "--executor", "host", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["mesh"] == 2
    assert told["counts"]["all2all"] > 0
    assert told["loss"] < told["first_loss"]
    # The preset balances its experts: in halves that loss is of each half.
    assert told["loss"] == pytest.approx(told["one_device_loss"], rel=1e-3)
    assert told["step_s"] > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--batch 6", "`--batch` must be a multiple of 4"),
        ("--layers 2", "`--model` and `--layers` must be those of the search"),
        ("--microbatches 4", "`--microbatches` and `--partitioner` must be left out"),
        ("--steps -1", "`--steps` must be from 1 to 1,000,000,000, not -1"),
    ],
)
def test_a_duplex_that_does_not_fit_is_refused(
    duplex_file: str, options: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*_EXECUTE, duplex_file, *_ROUTED, *options.split()]) == 2
    assert words in capsys.readouterr().err
