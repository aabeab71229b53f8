"""`jaxpipe plan`, called as from a terminal, and the plan file that training takes."""

import json
import shlex
from pathlib import Path

import pytest

from jaxpipe import topo
from jaxpipe.cli.main import main
from jaxpipe.config import config_from, load_config, to_tree
from jaxpipe.errors import ConfigError, PlanError
from jaxpipe.plan import check_plan, read_plan
from jaxpipe.plan.check import MAX_MICROBATCHES
from jaxpipe.plan.cost import flop_profile, write_profile
from jaxpipe.propose.resolve import plan_from
from jaxpipe.schedule import ScheduleKind, read_schedule
from tests.cli.conftest import WriteConfig
from tests.runtime.training import run_tree, tiny_tree


def changed(*settings: str) -> list[str]:
    """Return the words of the command line for settings."""
    return [word for setting in settings for word in ("--set", setting)]


_SMALL = (
    "--cluster",
    "two-region",
    "--model",
    "tiny",
    "--batch",
    "8",
    "--set",
    "paced.tflops=0.01",
)
_QUICK = ("--budget", "1")


def planned(out: Path, *words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Plan, and return what is printed."""
    assert main(["plan", *_SMALL, *_QUICK, "--out", str(out), *words]) == 0
    return capsys.readouterr().out


def test_a_plan_says_what_it_takes_and_why(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    told = planned(tmp_path / "plan.toml", capsys=capsys)
    for words in (
        "a step takes",
        "(simulated)",
        "compute",
        "bubble",
        "activations",
        "gradients",
        "as listed",
        "random",
        "DT-FM's published cost",
        f"--set plan.file={tmp_path / 'plan.toml'}",
        "--set plan.cluster=two-region --set train.batch=8",
        "alternatives (simulated seconds of a step",
    ):
        assert words in told, told
    plan = read_plan(tmp_path / "plan.toml", topo.load("two-region"))
    check_plan(plan, num_devices=4)


def test_a_batch_has_no_more_microbatches_than_a_step_may(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    out = tmp_path / "plan.toml"
    planned(out, "--set", f"train.batch={2**18}", capsys=capsys)
    plan = read_plan(out, topo.load("two-region"))
    assert plan.num_microbatches <= MAX_MICROBATCHES < plan.batch
    words = ["plan", *_SMALL, *_QUICK, "--out", str(out), "--set", "train.batch=999999999"]
    assert main(words) == 2
    assert "a step of a replica has at most 8,192 microbatches" in capsys.readouterr().err


@pytest.mark.parametrize("objective", ["time", "dtfm"])
def test_json_is_one_object_whose_parts_add_up(
    objective: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    words = (
        "--objective",
        objective,
        "--set",
        "plan.stages=2",
        "--set",
        "plan.replicas=2",
        "--json",
    )
    told = json.loads(planned(tmp_path / "plan.toml", *words, capsys=capsys))
    assert told["truth"] == "simulated"
    assert told["seconds"] == pytest.approx(sum(told["breakdown"].values()))
    assert told["seconds"] <= min(told["random_seconds"]) * 1.001 or objective == "dtfm"
    assert (told["stages"], told["replicas"], told["left_out"]) == (2, 2, [])


@pytest.mark.parametrize("limit", ["safe", "any"])
def test_codecs_are_chosen_when_asked_for(
    limit: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, write_config: WriteConfig
):
    out = tmp_path / "plan.toml"
    # Devices so fast that the links between them take most of a step.
    words = (
        "--set",
        f"plan.codecs={limit}",
        "--set",
        "plan.stages=2",
        "--set",
        "plan.replicas=2",
        "--set",
        "paced.tflops=100",
        "--set",
        "paced.ideal=true",
    )
    told = planned(out, *words, capsys=capsys)
    assert f"codecs of this plan, at most {limit} (simulated, " in told
    found = json.loads(planned(out, *words, "--json", capsys=capsys))
    codecs = found["codecs"]
    assert found["seconds"] == pytest.approx(
        next(
            each["seconds"]
            for each in codecs["trials"]
            if all(each[field] == codecs[field] for field in ("boundary", "gradients"))
        )
    )
    assert found["seconds"] < 0.9 * codecs["plain_seconds"]
    assert codecs["plain_seconds"] == next(
        each["seconds"]
        for each in codecs["trials"]
        if (each["boundary"], each["gradients"]) == ("none", "none")
    )
    # The gradients of a tiny model are most of its bytes.
    assert codecs["gradients"] == ("int8" if limit == "safe" else "top_k")
    changes = [each for each in told.split(" --set ") if each.startswith("comm.")]
    assert f"comm.gradients={codecs['gradients']}" in [each.strip() for each in changes]
    assert ", with comm.boundary=" in out.read_text().splitlines()[0]
    settings = [f"comm.{field}={codecs[field]}" for field in ("boundary", "gradients")]
    settings += [f"plan.file={out}", "plan.cluster=two-region", "train.batch=8"]
    read = load_config(write_config(model={"num_layers": 4}), settings, notice=None)
    assert plan_from(read).all_reduce == "hierarchical"
    assert read.comm.gradients == codecs["gradients"]


def test_outer_loops_are_compared_when_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    words = (*changed("plan.stages=1", "plan.replicas=4"), "--outer", "auto")
    told = planned(tmp_path / "plan.toml", *words, capsys=capsys)
    for islands in (2, 4):
        assert f"  {islands} islands, every 30 steps  " in told
    assert "first at equal loss: " in told
    assert "beyond published sizes" in told
    found = json.loads(planned(tmp_path / "plan.toml", *words, "--json", capsys=capsys))["outer"]
    sums, *_, last = found["choices"]
    assert (sums["islands"], sums["compute_factor"], last["islands"]) == (0, 1.0, 4)
    assert last["equal_loss_seconds"] == pytest.approx(last["compute_factor"] * last["seconds"])


GPUS = """
name = "gpus"
[[hosts]]
region = "lab"
devices = 2
{lines}
"""


@pytest.mark.parametrize(
    ("lines", "words", "precision", "unchecked"),
    [
        ('gpu = "A100-40GB"', (), "tf32", []),
        ('gpu = "A100-40GB"', tuple(changed("run.matmul_precision=float32")), "fp32", []),
        ('gpu = "RX-9070"\nmemory_gib = 24\ntflops = 82.6', (), "fp32", []),
        ("effective_tflops = 3", (), "fp32", ["lab-0:0", "lab-0:1"]),
    ],
)
def test_a_plan_says_its_precision_and_what_memory_it_did_not_check(
    lines: str,
    words: tuple[str, ...],
    precision: str,
    unchecked: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
):
    cluster = tmp_path / "gpus.toml"
    cluster.write_text(GPUS.format(lines=lines))
    here = ("--cluster", str(cluster), *changed("plan.stages=2", "plan.replicas=1"), *words)
    told = json.loads(planned(tmp_path / "plan.toml", *here, "--json", capsys=capsys))
    assert (told["precision"], told["memory_unchecked"]) == (precision, unchecked)
    text = planned(tmp_path / "plan.toml", *here, capsys=capsys)
    assert ("matrix products in TF32" in text) == (precision == "tf32")
    assert ("memory was not checked on 2 devices" in text) == bool(unchecked)


def test_a_stage_that_exceeds_a_described_memory_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    cluster = tmp_path / "gpus.toml"
    cluster.write_text(GPUS.format(lines="memory_gib = 0.001\ntflops = 1"))
    words = ("plan", *_SMALL, *_QUICK, "--cluster", str(cluster), "--out", str(tmp_path / "p"))
    assert main([*words]) == 2
    assert "no plan fits 4 layers" in capsys.readouterr().err


def test_a_device_that_is_left_out_is_named_with_the_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    told = planned(
        tmp_path / "plan.toml", *changed("plan.stages=3", "plan.replicas=1"), capsys=capsys
    )
    assert "1 devices are not used (" in told
    assert "no larger plan divides batch 8" in told


def test_a_measured_profile_takes_the_place_of_flops(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    profile = flop_profile(
        num_layers=4,
        layer_flop=1e10,
        layer_parameters=10,
        layer_kept_bytes=10,
        activation_bytes=10,
        flops_per_s=1e10,
    )
    write_profile(profile, tmp_path / "profile.json")
    words = (
        "--set",
        f"paced.profile={tmp_path / 'profile.json'}",
        "--set",
        "plan.stages=1",
        "--set",
        "plan.replicas=1",
    )
    told = json.loads(planned(tmp_path / "plan.toml", *words, "--json", capsys=capsys))
    assert told["breakdown"]["compute"] == pytest.approx(8 * 4 * 3.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "huge"), "`--model` must be a known name, not 'huge'"),
        (("--cluster", "case9"), "`--cluster`: no cluster 'case9'"),
        (("--batch", "0"), "`--batch` must be from 1 to 1,000,000,000, not 0"),
        (("--budget", "0"), "`--budget` must be above 0, not 0.0"),
        (
            tuple(changed("plan.stages=9")),
            "`plan.stages` x `plan.replicas` = 9 x 1 = 9 ranks need as many devices",
        ),
        (
            tuple(changed("paced.profile=none.json")),
            "`paced.profile`: cannot read the profile none.json",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    assert main(["plan", *_SMALL, "--out", str(tmp_path / "plan.toml"), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "plan.toml").exists()


def test_a_plan_file_wins_over_the_section_and_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, write_config: WriteConfig
):
    out = tmp_path / "plan.toml"
    planned(out, *changed("plan.stages=4", "plan.replicas=1"), capsys=capsys)
    notices: list[str] = []
    config = write_config(
        model={"num_layers": 4}, plan={"schedule": "gpipe", "devices": ["here-0:0"], "cut": [4]}
    )
    by_file = [f"plan.file={out}", "plan.cluster=two-region"]
    read = load_config(config, by_file, notice=notices.append)
    assert plan_from(read).num_stages == 4
    assert config_from(to_tree(read)) == read
    assert load_config(config, by_file, notice=None) == read
    (notice,) = notices
    assert notice.startswith(f"`plan.file` {out} has the whole plan: it overrides `plan.")
    for words in ("stages` = 2", "replicas` = 2", "microbatch` = 1", "schedule` = 'gpipe'"):
        assert f"`plan.{words}" in notice
    assert "cluster" not in notice
    load_config(config, notice=notices.append)
    assert len(notices) == 1
    # What is overridden is checked all the same: a typo is one.
    for wrong in ("plan.stagez=3", "plan.stages=none"):
        with pytest.raises(ConfigError, match=r"plan\.stage"):
            load_config(config, [*by_file, wrong], notice=None)


def test_a_configuration_is_planned_and_trained_without_editing_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, write_config: WriteConfig
):
    config, out = write_config(model={"num_layers": 4}), tmp_path / "my plan.toml"
    words = (str(config), *changed("train.batch=4", "paced.tflops=0.01"), *_QUICK)
    assert main(["plan", *words, "--cluster", "two-region", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    following = told.partition("next: jaxpipe ")[2].strip()
    assert f"train {config} --set plan.cluster=two-region --set train.batch=4" in following
    assert following.endswith(f" --set 'plan.file={out}'")
    assert "CONFIG" not in told
    plan = read_plan(out, topo.load("two-region"))
    assert sum(plan.cut) == 4
    assert plan.num_replicas * plan.num_microbatches * plan.microbatch == 4

    # The printed command is right as it is, for `show` as well, which prints it again.
    arguments = shlex.split(following)
    assert main(["show", *arguments[1:]]) == 0
    shown = capsys.readouterr().out
    assert "has the whole plan: it overrides `plan.stages` = 2" in shown
    assert f"next: jaxpipe {following}" in shown
    assert main([*arguments, "--check"]) == 0
    checked = capsys.readouterr().out
    assert "has the whole plan: it overrides `plan.stages` = 2" in checked
    assert f"checked; next: jaxpipe {following}" in checked


def test_a_configuration_is_planned_with_its_codecs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, write_config: WriteConfig
):
    config, out = write_config(model={"num_layers": 4}), tmp_path / "plan.toml"
    fixed = (
        "--set",
        "paced.tflops=100",
        "--set",
        "paced.ideal=true",
        "--set",
        "plan.stages=2",
        "--set",
        "plan.replicas=2",
        *_QUICK,
    )
    words = ["plan", str(config), "--cluster", "two-region", *fixed, "-o", str(out)]
    codecs = tuple(changed("comm.boundary=int8", "comm.gradients=int8"))
    assert main([*words, "--json"]) == 0
    plain_s = json.loads(capsys.readouterr().out)["seconds"]
    assert main([*words, *codecs, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seconds"] < plain_s
    assert main([*words, *codecs]) == 0
    told = capsys.readouterr().out
    assert "codecs of the configuration: int8 between stages, int8 for gradients" in told
    # The codec of gradients is that of a hierarchical all-reduce: the run accepts the plan.
    assert read_plan(out, topo.load("two-region")).all_reduce == "hierarchical"
    arguments = shlex.split(told.partition("next: jaxpipe ")[2])
    assert main([*arguments, "--check"]) == 0


def test_what_is_set_is_kept_and_shorthands_are_settings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, write_config: WriteConfig
):
    config, out = write_config(train={"remat": "dots"}), tmp_path / "plan.toml"
    words = (str(config), "--cluster", "two-region", "--batch", "6", *_QUICK, "--out", str(out))
    speed = tuple(changed("paced.tflops=1", "train.remat=full"))
    assert main(["plan", *words, *speed, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["batch"], told["model"], sum(told["cut"])) == (6, str(config), 3)
    assert (told["stages"], told["replicas"], told["microbatch"]) == (2, 2, 1)
    assert (told["schedule"], told["remat"]) == ("1f1b", "full")
    assert main(["plan", *words, *speed]) == 0
    following = capsys.readouterr().out.partition("next: ")[2]
    assert "--set plan.cluster=two-region --set train.batch=6" in following
    assert "--set train.remat=full" in following


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("none.toml",), "cannot read the configuration none.toml"),
        ((), "`--model` is missing: name a preset, or give a configuration file"),
        (("--cluster", "laptop", "--model", "tiny"), "`--batch` is missing"),
    ],
)
def test_what_does_not_say_what_to_plan_is_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    assert main(["plan", *words, "--out", str(tmp_path / "plan.toml")]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["time", "dtfm"])
def test_a_plan_file_trains_to_the_losses_of_any_other_plan(
    objective: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, dataset: Path
):
    out = tmp_path / "plan.toml"
    words = ("--objective", objective, *changed("plan.stages=2", "plan.replicas=1"))
    planned(out, *words, capsys=capsys)
    tree = tiny_tree(tmp_path / "identity", dataset, model={"num_layers": 4, "sequence": 16})
    by_file = {**tree, "run": {**tree["run"], "folder": str(tmp_path / "by-file")}}
    by_file["plan"] = {"file": str(out), "cluster": "two-region"}
    losses = [[m.loss for m in run_tree(each)] for each in (tree, by_file)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_a_plan_file_is_for_one_model_and_batch(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, write_config: WriteConfig
):
    planned(tmp_path / "plan.toml", capsys=capsys)
    config = write_config(model={"num_layers": 4})
    by_file = [f"plan.file={tmp_path / 'plan.toml'}", "plan.cluster=two-region"]
    assert plan_from(load_config(config, by_file)).num_ranks >= 1
    with pytest.raises(PlanError, match=r"`train.batch` .16. must be as in .* planned for 8"):
        plan_from(load_config(config, [*by_file, "train.batch=16"]))
    with pytest.raises(PlanError, match=r"`model.num_layers` .3. must be as in .* planned for 4"):
        plan_from(load_config(config, [*by_file, "model.num_layers=3"]))
    with pytest.raises(PlanError, match=r"`cluster` 'two-region', the configuration 'laptop'"):
        plan_from(load_config(config, [by_file[0], "plan.cluster=laptop"]))


def test_a_plan_is_exported_beside_its_file(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    out = tmp_path / "mine.toml"
    told = planned(out, "--export", "megatron", *changed("plan.stages=2"), capsys=capsys)
    arguments, ranks = tmp_path / "mine.megatron.args", tmp_path / "mine.ranks.txt"
    assert f"megatron -> {arguments}, {ranks}" in told
    # Megatron has few schedules, so the plan was searched with one of them.
    assert read_plan(out, topo.load("two-region")).schedule is ScheduleKind.ONE_F_ONE_B
    assert "--set plan.schedule=1f1b" in told
    assert "--pipeline-model-parallel-size 2\n" in arguments.read_text()
    assert set(ranks.read_text().split()) <= {d.name for d in topo.load("two-region").devices}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("mesh.tensor=2", "`mesh` has 2 devices for a rank, which `--export` does not write"),
        ("outer.islands=2", "`outer.islands` is 2, which `--export` does not write"),
    ],
)
def test_what_no_export_holds_is_refused_before_the_search(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, setting: str, words: str
):
    out = ("--out", str(tmp_path / "plan.toml"))
    assert main(["plan", *_SMALL, *out, "--export", "megatron", *changed(setting)]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_codecs_that_stay_out_of_an_export_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    out = tmp_path / "plan.toml"
    settings = changed("plan.stages=2", "comm.boundary=int8", "plan.schedule=zb-h1")
    told = planned(out, "--export", "torchtitan", *settings, capsys=capsys)
    assert "not in them: comm.boundary=int8; a step takes longer without" in told
    schedule = read_schedule(tmp_path / "plan.csv", num_stages=2)
    assert schedule == read_plan(out, topo.load("two-region")).compute_schedule()
