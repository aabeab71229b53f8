"""Scripts and manifests: golden files, and what the scripts do with stand-ins for the launchers."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from jaxpipe.cli.main import main
from jaxpipe.errors import PlanError
from jaxpipe.launch import mpijob_manifest
from tests.launch.golden_cases import FOLDER, launch_on, texts


@pytest.mark.parametrize("name", texts())
def test_the_text_is_the_golden_file(name: str):
    assert texts()[name] == (FOLDER / name).read_text()


def test_every_golden_file_has_a_case():
    assert {path.name for path in FOLDER.iterdir()} == set(texts())


def stand_in(folder: Path, name: str, script: str) -> None:
    """Put a program of this name first on the path of `environment`."""
    program = folder / name
    program.write_text(f"#!/usr/bin/env bash\n{script}\n")
    program.chmod(0o755)


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_mpirun_gets_the_placement_and_resumes(has_checkpoint: bool, tmp_path: Path):
    stand_in(tmp_path, "mpirun", 'cat "$2" "${4#rankfile:FILE=}"; printf "<%s>" "$@"')
    checkpoints = tmp_path / "runs" / "My run_2" / "checkpoints"
    for folder in ["step-00000004.partial", *(["step-00000002"] if has_checkpoint else [])]:
        (checkpoints / folder).mkdir(parents=True)
        (checkpoints / folder / "manifest.json").touch()
    ran = subprocess.run(
        ["bash", FOLDER / "mpirun.sh"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "rank 3=virginia-1 slot=0\n" in ran.stdout
    resume = "<--resume>" if has_checkpoint else ""
    tail = f"<-n><4><jaxpipe><train><my.toml><--set><run.folder=runs/My run_2>{resume}"
    assert ran.stdout.endswith(tail)


def test_every_rank_of_mpirun_sees_its_own_gpu(tmp_path: Path):
    stand_in(
        tmp_path,
        "mpirun",
        'shift 8; for OMPI_COMM_WORLD_RANK in 0 1 2 3; do export OMPI_COMM_WORLD_RANK; "$@"; done',
    )
    stand_in(tmp_path, "jaxpipe", 'echo "$CUDA_VISIBLE_DEVICES $3"')
    ran = subprocess.run(
        ["bash", FOLDER / "mpirun_gpu.sh"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines() == ["0 --set", "1 --set", "0 --set", "1 --set"]


def test_slurm_is_asked_to_queue_again_before_the_end(tmp_path: Path):
    stand_in(tmp_path, "srun", 'cat "$SLURM_HOSTFILE" > hosts; exec sleep 60')
    stand_in(tmp_path, "scontrol", 'echo "$@" > asked')
    with subprocess.Popen(
        ["bash", FOLDER / "slurm_gpu.sh"], cwd=tmp_path, env=environment(tmp_path)
    ) as job:
        deadline = time.monotonic() + 30.0
        while not (tmp_path / "hosts").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        job.send_signal(signal.SIGUSR1)
        assert job.wait(timeout=30.0) == 0
    assert (tmp_path / "asked").read_text() == "requeue 17\n"
    assert (tmp_path / "hosts").read_text().split() == ["here-0", "here-0", "here-1", "here-1"]


@pytest.mark.parametrize("code", [0, 3])
def test_slurm_sees_how_the_ranks_ended(code: int, tmp_path: Path):
    stand_in(tmp_path, "srun", f"exit {code}")
    command = ["bash", FOLDER / "slurm_cpu.sh"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), check=False)
    assert ended.returncode == code


def test_workers_with_unlike_numbers_of_ranks_are_refused():
    launch = launch_on("homogeneous:hosts=2,devices=2", stages=3, replicas=1)
    with pytest.raises(PlanError, match=r"here-0 2, here-1 1 ranks"):
        mpijob_manifest(launch, image="jaxpipe:1", claim="shared")


def test_the_command_prints_and_changes_nothing(capsys: pytest.CaptureFixture[str]):
    config = "experiments/quickstart/two_region.toml"
    words = ["launch", config, "--target", "slurm", "--set", "train.steps=7", "--time", "1:00"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "#SBATCH --time=1:00\n" in printed
    assert f"jaxpipe train {config} --set train.steps=7" in printed
    assert "#SBATCH --job-name=quickstart\n" in printed
