"""Scripts and manifests: golden files, what is refused, and the command."""

import inspect
import re
from dataclasses import replace
from pathlib import Path

import pytest

from jaxpipe.cli.launch import launch
from jaxpipe.cli.main import main
from jaxpipe.errors import PlanError
from jaxpipe.launch import (
    OPTIONS_OF,
    LaunchTarget,
    SlurmMpi,
    mpijob_manifest,
    mpirun_script,
    slurm_script,
    targets_of,
)
from tests.launch.golden_cases import FOLDER, launch_on, texts

CONFIG = "experiments/quickstart/two_region.toml"


@pytest.mark.parametrize("name", texts())
def test_the_text_is_the_golden_file(name: str):
    assert texts()[name] == (FOLDER / name).read_text()


def test_every_golden_file_has_a_case():
    assert {path.name for path in FOLDER.iterdir()} == set(texts())


def test_hosts_without_ranks_are_left_out():
    script = mpirun_script(launch_on("two-region", stages=1, replicas=1))
    assert "ohio-0 slots=1\nHOSTS\n" in script
    assert "ohio-1" not in script


def test_ranks_of_several_gpus_get_as_many():
    launch = replace(launch_on("homogeneous:hosts=2,devices=2", stages=2, replicas=2), gpus_each=3)
    assert "#SBATCH --gpus-per-task=3\n" in slurm_script(launch, time_limit="1:00")
    inside = slurm_script(launch, time_limit="1:00", mpi=SlurmMpi.MPIRUN)
    assert "#SBATCH --gpus-per-node=6\n" in inside
    assert "nvidia.com/gpu: 6\n" in mpijob_manifest(launch, image="jaxpipe:1", claim="shared")
    assert "CUDA_VISIBLE_DEVICES" not in mpirun_script(launch)


def test_workers_with_unlike_devices_are_refused():
    launch = launch_on("gcp-two-zones", stages=2, replicas=1)
    assert mpijob_manifest(launch, image="jaxpipe:1", claim="shared")  # two like devices
    where, plan = launch.cluster, launch.plan
    first = where.devices[plan.device(0)]
    other = replace(first, gpu=next(d.gpu for d in where.devices if d.gpu != first.gpu))
    devices = tuple(other if d == first else d for d in where.devices)
    unlike = replace(launch, cluster=replace(where, devices=devices))
    with pytest.raises(PlanError, match=r"`--target` mpijob starts equal workers.* unlike devices"):
        mpijob_manifest(unlike, image="jaxpipe:1", claim="shared")
    assert mpirun_script(unlike)


def test_workers_with_unlike_numbers_of_ranks_are_refused():
    launch = launch_on("homogeneous:hosts=2,devices=2", stages=3, replicas=1)
    with pytest.raises(PlanError, match=r"for each worker of an MPIJob, not here-0 2, here-1 1"):
        mpijob_manifest(launch, image="jaxpipe:1", claim="shared")


def test_the_command_prints_and_changes_nothing(capsys: pytest.CaptureFixture[str]):
    words = ["launch", CONFIG, "--target", "slurm", "--set", "train.steps=7", "--time", "1:00"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "#SBATCH --time=1:00\n#SBATCH --signal=B:USR1@120\n" in printed
    assert f'"$jaxpipe" train {CONFIG} --set train.steps=7' in printed
    assert "#SBATCH --job-name=quickstart\n" in printed
    assert "last=$folder/checkpoints/step-00000007/manifest.json\n" in printed
    assert "srun --mpi=pmix " in printed
    assert not Path("runs/quickstart/ended").exists()


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        (["--mpi", "pmi2"], "srun --mpi=pmi2 "),
        (["--set", "run.survive=shrink"], "mpirun --with-ft"),
    ],
)
def test_how_slurm_starts_ranks_can_be_chosen(
    words: list[str], starts: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["launch", CONFIG, "--target", "slurm", *words]) == 0
    assert f"\n{starts}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--set", "run.survive=shrink", "--mpi", "pmix"], "`run.survive` is shrink"),
        (["--set", "run.compute=paced"], "`run.compute` (paced)"),
        (["--notice", "5"], "`--notice` (5"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["launch", CONFIG, "--target", "slurm", *words]) == 2
    assert wrong in capsys.readouterr().err


OPTIONS = {
    "time": "1:00",
    "notice": "60",
    "mpi": "pmix",
    "image": "jaxpipe:1",
    "claim": "shared",
    "out": "tasks",
}


@pytest.mark.parametrize("target", LaunchTarget)
def test_options_of_other_targets_are_refused(
    target: LaunchTarget, capsys: pytest.CaptureFixture[str]
):
    for option in OPTIONS.keys() - OPTIONS_OF[target]:
        words = ["launch", CONFIG, "--target", target, f"--{option}", OPTIONS[option]]
        assert main(words) == 2
        expected = f"jaxpipe: `--{option}` is an option of `--target` {targets_of(option)[0]}"
        assert capsys.readouterr().err.startswith(expected)


def test_help_and_guide_say_which_targets_take_an_option():
    taken = {option for options in OPTIONS_OF.values() for option in options}
    common = {"config", "target", "settings"}
    assert taken == OPTIONS.keys() == set(inspect.signature(launch).parameters) - common
    # From Python 3.13 on, `__doc__` lacks the indentation of the source.
    described = inspect.getdoc(launch) or ""
    words = dict(re.findall(r"^ {4}(\w+): of ([\w, ]+):", described, re.MULTILINE))
    listed = {option: tuple(re.split(", | and ", names)) for option, names in words.items()}
    assert listed == {option: targets_of(option) for option in taken}
    guide = Path("docs/guide/slurm-and-kubernetes.md").read_text()
    for target, options in OPTIONS_OF.items():
        shown = ", ".join(f"`--{option}`" for option in options) or "none"
        assert re.search(rf"^\| `{target}` \| .* \| {shown} \|$", guide, re.MULTILINE), target
