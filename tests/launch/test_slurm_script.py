"""What the batch script does before and when it is queued again, with stand-ins for SLURM."""

import signal
from pathlib import Path

import pytest

from jaxpipe.errors import ConfigError
from jaxpipe.launch import SlurmMpi, slurm_script
from tests.launch.golden_cases import FOLDER, launch_on
from tests.launch.stand_in import SAVES, finish, save, stand_in, start, wait_for

SCONTROL = '[[ $1 == requeue ]] && echo "$@" > asked'
PREEMPTED = f'[[ $1 == show ]] && echo "  PreemptTime=2026-11-21T19:55:10 Suspend"; {SCONTROL}'
WAITS = "cat $SLURM_HOSTFILE > hosts; while :; do sleep 0.05; done"


def short_script(folder: Path) -> Path:
    """Write a script that waits for one second for the ranks to stop."""
    launch = launch_on("homogeneous:hosts=2,devices=2", stages=2, replicas=2)
    path = folder / "job.sh"
    path.write_text(slurm_script(launch, time_limit="1:00", notice_s=31))
    return path


@pytest.mark.parametrize(
    ("srun", "asked", "code"),
    [
        ("trap 'sleep 0.3; save 00000007; exit 0' USR1", True, 0),
        ("trap 'save 00000600; exit 0' USR1", False, 0),
        ("trap 'exit 0' USR1", False, 1),
        ("trap '' USR1", False, 1),
        ("save 00000005; trap '' USR1", True, 0),
        ("save 00000005; trap 'exit 1' USR1", True, 0),
    ],
    ids=["saves", "was at the end", "saves nothing", "hangs", "hangs later", "fails later"],
)
def test_it_is_queued_again_if_it_came_further(srun: str, asked: bool, code: int, tmp_path: Path):
    stand_in(tmp_path, "srun", f"{SAVES}; {srun}; {WAITS}")
    stand_in(tmp_path, "scontrol", SCONTROL)
    save(tmp_path, "00000002")
    job = start(short_script(tmp_path), tmp_path)
    wait_for(tmp_path / "hosts")
    job.send_signal(signal.SIGUSR1)
    ended, _, complained = finish(job)
    assert ended == code
    assert ("did not stop" in complained) == ("trap ''" in srun)
    assert (tmp_path / "asked").exists() == asked
    assert (tmp_path / "hosts").read_text().split() == ["here-0", "here-0", "here-1", "here-1"]
    if asked:
        assert (tmp_path / "asked").read_text() == "requeue 17\n"


def test_a_job_that_cannot_be_queued_again_has_failed(tmp_path: Path):
    stand_in(tmp_path, "srun", f"{SAVES}; trap 'save 00000007; exit 0' USR1; {WAITS}")
    stand_in(tmp_path, "scontrol", "exit 1")
    job = start(short_script(tmp_path), tmp_path)
    wait_for(tmp_path / "hosts")
    job.send_signal(signal.SIGUSR1)
    assert finish(job)[0] == 143


@pytest.mark.parametrize(
    ("srun", "code"),
    [("save 00000600", 0), ("save 00000007", 1), ("exit 3", 3)],
    ids=["trained", "stopped by others", "failed"],
)
def test_slurm_sees_how_the_ranks_ended(srun: str, code: int, tmp_path: Path):
    stand_in(tmp_path, "srun", f"{SAVES}; {srun}")
    stand_in(tmp_path, "scontrol", SCONTROL)
    assert finish(start(FOLDER / "slurm_cpu.sh", tmp_path))[0] == code
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("srun", "asked"),
    [("save 00000007", True), ("save 00000600", False), ("exit 1", True)],
    ids=["saves", "was at the end", "compiled"],
)
def test_a_job_that_makes_room_is_queued_again(srun: str, asked: bool, tmp_path: Path):
    stand_in(tmp_path, "srun", f"{SAVES}; {srun}")
    stand_in(tmp_path, "scontrol", PREEMPTED)
    assert finish(start(FOLDER / "slurm_cpu.sh", tmp_path))[0] == 0
    assert (tmp_path / "asked").exists() == asked


def test_ranks_that_survive_others_are_started_by_mpirun(tmp_path: Path):
    stand_in(tmp_path, "mpirun", f'{SAVES}; cat "${{7#rankfile:FILE=}}"; printf \'<%s>\' "$@"')
    code, said, _ = finish(start(FOLDER / "slurm_survive.sh", tmp_path))
    assert code == 1
    assert said.startswith("rank 0=ohio-0 slot=0\n")
    assert "<--with-ft><ulfm><--mca><mpi_ft_detector_thread><true><--map-by>" in said
    launch = launch_on("two-region", stages=2, replicas=2, survives=True)
    with pytest.raises(ConfigError, match=r"`run\.survive` is shrink, and srun .`--mpi` pmix"):
        slurm_script(launch, time_limit="1:00", mpi=SlurmMpi.PMIX)


@pytest.mark.parametrize("notice_s", [0, 30])
def test_a_notice_without_time_to_save_is_refused(notice_s: int):
    launch = launch_on("two-region", stages=2, replicas=2)
    with pytest.raises(ConfigError, match=f"`--notice` .{notice_s} s"):
        slurm_script(launch, time_limit="1:00", notice_s=notice_s)
