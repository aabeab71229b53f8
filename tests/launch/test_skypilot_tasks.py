"""Task files of SkyPilot: what they ask for, what they run, with stand-ins, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from jaxpipe.cli.main import main
from jaxpipe.errors import ConfigError, PlanError
from jaxpipe.launch import Launch, skypilot_tasks
from tests.launch.golden_cases import FOLDER, launch_on
from tests.launch.stand_in import SAVES, finish, stand_in, start
from tests.launch.test_launch import CONFIG


def trees(launch: Launch) -> list[dict[str, object]]:
    return [yaml.safe_load(text) for text in skypilot_tasks(launch, image="a/b:1").values()]


def test_every_region_has_a_task_with_its_hosts_and_gpus():
    first, last = trees(launch_on("two-region", stages=2, replicas=2))
    assert (first["name"], last["name"]) == ("my-run-2-ohio", "my-run-2-virginia")
    assert (first["num_nodes"], last["num_nodes"]) == (2, 2)
    assert first["resources"] == {"image_id": "docker:a/b:1"}
    assert (first["envs"], last["run"]) == ({"ADDRESSES": None}, "jaxpipe --version\n")
    gpus = launch_on("homogeneous:hosts=2,devices=2", stages=2, replicas=2)
    (only,) = trees(gpus)
    assert only["resources"] == {"image_id": "docker:a/b:1", "accelerators": "V100:2"}
    (only,) = trees(replace(gpus, gpus_each=2))
    assert only["resources"] == {"image_id": "docker:a/b:1", "accelerators": "V100:4"}


def run_task(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, addresses: str, node: int = 0
) -> tuple[int, str, str]:
    """Run what a task runs; mpirun prints its files and words, and saves the last step."""
    monkeypatch.setenv("ADDRESSES", addresses)
    monkeypatch.setenv("SKYPILOT_NODE_RANK", str(node))
    words = 'printf "<%s>" "$@"; save 00000600'
    stand_in(folder, "mpirun", f'{SAVES}; cat "$3" "${{5#rankfile:FILE=}}"; {words}')
    script = folder / "run.sh"
    script.write_text(yaml.safe_load((FOLDER / name).read_text())["run"])
    return finish(start(script, folder))


def test_the_first_node_starts_ranks_on_all_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    addresses = "10.0.0.1 10.0.0.2 fd00::3 d.example"
    code, said, complained = run_task(
        "skypilot_ohio.yaml", tmp_path, monkeypatch, addresses=addresses
    )
    assert (code, complained) == (0, "")
    hosts = "".join(f"{address} slots=1\n" for address in addresses.split())
    ranks = "".join(f"rank {rank}=+n{rank} slot=0\n" for rank in range(4))
    assert said.startswith(f"{hosts}{ranks}<--allow-run-as-root><--hostfile>")
    assert said.endswith("<train><my.toml><--set><run.folder=runs/My run_2>")


def test_other_nodes_start_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    done = run_task("skypilot_ohio.yaml", tmp_path, monkeypatch, addresses="a b c d", node=1)
    assert done == (0, "", "")


@pytest.mark.parametrize("addresses", ["", "a b c", "a b c d e", "a b c d;reboot", "a b c $(id)"])
def test_wrong_addresses_start_nothing(
    addresses: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    done = run_task("skypilot_ohio.yaml", tmp_path, monkeypatch, addresses=addresses)
    assert done == (2, "", "`ADDRESSES` must be those of 4 hosts: ohio 2, virginia 2\n")


def test_unlike_hosts_of_a_region_are_refused():
    uneven = launch_on("homogeneous:hosts=2,devices=2", stages=3, replicas=1)
    with pytest.raises(PlanError, match="for each worker of a task, not here-0 2, here-1 1; use"):
        skypilot_tasks(uneven, image="a")
    launch = launch_on("gcp-two-zones", stages=2, replicas=1)
    first = launch.cluster.devices[launch.plan.device(0)]
    kinds = {d.gpu for d in launch.cluster.devices if d.gpu != first.gpu}
    devices = tuple(
        replace(d, gpu=kinds.copy().pop()) if d == first else d for d in launch.cluster.devices
    )
    with pytest.raises(PlanError, match="`--target` skypilot starts equal workers"):
        skypilot_tasks(replace(launch, cluster=replace(launch.cluster, devices=devices)), image="a")


def test_the_command_writes_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["launch", CONFIG, "--target", "skypilot", "--out", str(tmp_path / "tasks")]
    assert main(words) == 0
    files = {path.name: path.read_text() for path in (tmp_path / "tasks").iterdir()}
    assert len(files) > 1
    assert all(yaml.safe_load(text)["workdir"] == "." for text in files.values())
    assert " says how to start\n" in capsys.readouterr().out
    assert main(words) == 0
    assert "the result replaces " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "skypilot"], "`--out` must name the folder"),
        (["--target", "slurm", "--out", "x"], "`--out` is an option of `--target` skypilot"),
    ],
)
def test_a_folder_is_for_task_files(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", CONFIG, *words]) == 2
    assert said in capsys.readouterr().err


def test_other_images_are_refused():
    with pytest.raises(ConfigError, match="`--image` must be"):
        skypilot_tasks(launch_on("two-region", stages=2, replicas=2), image="a b")


def test_skypilot_reads_the_tasks(tmp_path: Path):
    sky = pytest.importorskip("sky", reason="needs SkyPilot")
    for path in FOLDER.glob("skypilot_*.yaml"):
        tree = yaml.safe_load(path.read_text())
        task = sky.Task.from_yaml_config(tree, env_overrides=[("ADDRESSES", "a b c d")])
        assert (task.run, task.num_nodes) == (tree["run"], tree["num_nodes"])
