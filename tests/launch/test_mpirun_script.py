"""What the script around mpirun does, with stand-ins for mpirun and jaxpipe."""

import signal
from pathlib import Path

import pytest

from tests.launch.golden_cases import FOLDER
from tests.launch.stand_in import SAVES, finish, save, stand_in, start, wait_for


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_mpirun_gets_the_placement_and_resumes(has_checkpoint: bool, tmp_path: Path):
    words = 'printf "<%s>" "$@"; save 00000600'
    stand_in(tmp_path, "mpirun", f'{SAVES}; cat "$2" "${{4#rankfile:FILE=}}"; {words}')
    save(tmp_path, "00000004.partial")
    if has_checkpoint:
        save(tmp_path, "00000002")
    code, said, _ = finish(start(FOLDER / "mpirun.sh", tmp_path))
    assert code == 0
    assert "virginia-1 slots=1\nrank 0=ohio-0 slot=0\n" in said
    assert "rank 3=virginia-1 slot=0\n" in said
    resume = "<--resume>" if has_checkpoint else ""
    train = f"<{tmp_path}/jaxpipe><train><my.toml><--set><run.folder=runs/My run_2>{resume}"
    assert said.endswith(f"<-n><4><-x><GLIBC_TUNABLES>{train}")


def test_every_rank_of_mpirun_sees_its_own_gpu(tmp_path: Path):
    stand_in(
        tmp_path,
        "mpirun",
        'shift 10; for OMPI_COMM_WORLD_RANK in 0 1 2 3; do export OMPI_COMM_WORLD_RANK; "$@"; done',
    )
    stand_in(tmp_path, "jaxpipe", 'echo "$CUDA_VISIBLE_DEVICES $3"')
    _, said, _ = finish(start(FOLDER / "mpirun_gpu.sh", tmp_path))
    assert said.splitlines() == ["0 --set", "1 --set", "0 --set", "1 --set"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_lets_the_ranks_save_and_stop(number: int, tmp_path: Path):
    wait = "touch ready; while :; do sleep 0.05; done"
    stand_in(tmp_path, "mpirun", f"{SAVES}; trap 'sleep 0.3; save 00000007; exit 0' USR1; {wait}")
    job = start(FOLDER / "mpirun.sh", tmp_path)
    wait_for(tmp_path / "ready")
    job.send_signal(number)
    assert finish(job)[0] == 143


def test_without_jaxpipe_on_the_path_it_says_so(tmp_path: Path):
    script = (FOLDER / "mpirun.sh").read_text().replace("jaxpipe)", "jaxpipe-missing)")
    (tmp_path / "run.sh").write_text(script)
    code, _, complained = finish(start(tmp_path / "run.sh", tmp_path))
    assert (code, complained) == (127, "no `jaxpipe` is on the path\n")


@pytest.mark.parametrize(
    ("does", "code"),
    [("save 00000600", 0), ("save 00000007", 1), ("exit 3", 3)],
    ids=["trained", "all ranks killed", "failed"],
)
def test_it_has_failed_unless_the_last_step_is_saved(does: str, code: int, tmp_path: Path):
    stand_in(tmp_path, "mpirun", f"{SAVES}; printf '<%s>' \"$@\"; {does}")
    save(tmp_path, "00000002")
    ended, said, _ = finish(start(FOLDER / "mpirun_survive.sh", tmp_path))
    assert ended == code
    assert said.startswith("<--with-ft><ulfm><--mca><mpi_ft_detector_thread><true><--hostfile>")


@pytest.mark.parametrize(
    ("before", "after", "code", "resumes"),
    [("", "600", 0, False), ("7", "600", 0, True), ("7", "9", 1, True), ("7", "", 1, True)],
)
def test_checkpoints_in_object_storage_are_asked_for(
    before: str, after: str, code: int, resumes: bool, tmp_path: Path
):
    # The command's own answer stands in a file, which the ranks change.
    (tmp_path / "newest").write_text(before)
    asked = '[[ "$*" == "runs --newest s3://bucket/my run" ]] && exec cat newest'
    stand_in(tmp_path, "jaxpipe", f"{asked}; exit 9")
    stand_in(tmp_path, "mpirun", f'printf "<%s>" "$@"; printf "{after}" > newest')
    ended, said, _ = finish(start(FOLDER / "mpirun_store.sh", tmp_path))
    assert (ended, "<--resume>" in said) == (code, resumes)


def test_a_store_that_does_not_answer_starts_nothing(tmp_path: Path):
    stand_in(tmp_path, "jaxpipe", "exit 2")
    stand_in(tmp_path, "mpirun", "touch started")
    code, _, _ = finish(start(FOLDER / "mpirun_store.sh", tmp_path))
    assert code == 1
    assert not (tmp_path / "started").exists()
