"""Bad input gets one line that names the field and the fix, and exit code 2, before any work."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from jaxpipe.cli.main import main
from tests.cli.conftest import WriteConfig
from tests.runtime.training import run_tree, tiny_tree


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must be refused, and return its one line."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("jaxpipe: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("section", "changes", "words"),
    [
        ("train", {"step": 3}, "unknown key `train.step`; did you mean `train.steps`?"),
        ("model", {"dims": 3}, "unknown key `model.dims`; did you mean `model.dim`?"),
        ("plans", {"stages": 3}, "unknown key `plans`; did you mean `plan`?"),
        (
            "train",
            {"steps": "ten"},
            "`train.steps`: it must be a whole number, not text; it is 'ten'",
        ),
        ("train", {"steps": 0}, "`train.steps` must be from 1 to 2147483647, not 0"),
        ("train", {"batch": 2**30}, "`train.batch` (1073741824) makes"),
        ("train", {"batch": 2**63}, "must fit into 64 bits"),
        ("data", {"folder": "x" * 256}, "255 bytes between slashes"),
        ("model", {"preset": 3}, "`model.preset` must be a name, is 3"),
        ("plan", {"schedule": "2f2b"}, "`plan.schedule`: Invalid enum value '2f2b'"),
        ("plan", {"cluster": "laptp"}, "`plan.cluster`: no cluster 'laptp': did you mean 'laptop'"),
        ("plan", {"stages": 4}, "`plan.stages` (4) must be at most 3"),
        ("plan", {"cut": [1, 1]}, "[1, 1] adds up to 2, the model has 3 layers"),
        ("mesh", {"tensor": 3}, "`mesh.tensor` (3) must divide `model.num_heads` (2)"),
        ("mesh", {"data": 2}, "`mesh.data` (2) must divide `plan.microbatch` (1)"),
        ("mesh", {"data": 0}, "`mesh.data` must be from 1 to 65536, not 0\n"),
        (
            "mesh",
            {"context": 3},
            "`model.sequence` (16) must be a multiple of 2 x `mesh.con",
        ),
        ("mesh", {"sequence_parallel": True}, "over the axis `tensor`, which is 1; raise it"),
        ("plan", {"replicas": 9}, "= 2 x 9 = 18 ranks need as many devices, but cluster"),
        ("train", {"batch": 7}, "= 2 x 1 = 2: it is 7; use 6 or 8"),
        ("train", {"sequence": 17}, "`train.sequence` (17) must be at most `model.sequence` (16)"),
        (
            "model",
            {"vocabulary": 100},
            "`model.vocabulary` (100) must be at least that of the dataset",
        ),
        ("train", {"eval_batches": 10_000}, "`train.eval_batches` is 10000, but"),
        ("model", {"preset": "tyni"}, "`model.preset`"),
        ("model", {"num_heads": 3}, "`model.dim` must be a multiple of `num_heads`"),
        ("data", {"folder": "no/such/folder"}, "jaxpipe data prepare"),
        ("comm", {"boundary": "int3"}, "`comm.boundary`: Invalid enum value 'int3'"),
        ("train", {"loop": "rolled"}, "'rolled'; choose from scan, unrolled; it is 'rolled'"),
        ("run", {"trackers": ["wb"]}, "`run.trackers[0]`: Invalid enum value 'wb'; choose from"),
        ("run", {"trackers": ["wb"]}, "choose from tensorboard, trackio, wandb"),
        (
            "run",
            {"trackers": ["wandb"] * 2},
            "`run.trackers` must name no tracker twice, is wandb, wandb; name each once",
        ),
        ("comm", {"boundary": "top_k"}, "`comm.boundary` must not be top_k"),
        (
            "comm",
            {"boundary": "top_k"},
            "choose from none, bf16",
        ),
        (
            "comm",
            {"top_k_fraction": 0.0},
            "`comm.top_k_fraction` must be above 0 and at",
        ),
        (
            "comm",
            {"top_k_fraction": 1.5},
            "`comm.top_k_fraction` must be above 0 and at",
        ),
        ("comm", {"chunk_bytes": 0}, "`comm.chunk_bytes` must be at least 512, not 0"),
        ("outer", {"islands": 2}, "`train.steps` (4) must be a multiple of `outer.every` (30)"),
        (
            "outer",
            {"islands": 3, "every": 2},
            "`outer.islands` (3) must divide the replicas of the p",
        ),
        ("outer", {"every": 2}, "`outer.every` (2) needs islands, and"),
        ("outer", {"island": 2}, "unknown key `outer.island`; did you mean `outer.islands`?"),
        ("outer", {"codec": "int3"}, "`outer.codec`: Invalid enum value 'int3'; choose from none"),
    ],
)
def test_a_wrong_configuration_is_refused(
    write_config: WriteConfig,
    capsys: pytest.CaptureFixture[str],
    section: str,
    changes: dict[str, Any],
    words: str,
) -> None:
    assert words in refusal(capsys, "train", str(write_config(**{section: changes})))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"outer": {"fragments": 5, "every": 5}, "train": {"steps": 5}}, "at most 4"),
        (
            {"plan": {"all_reduce": "library"}},
            "(library) and `outer.islands` (2) exclude each",
        ),
        (
            {"plan": {"cuts": ((2, 1), (3,)), "shares": (5, 3)}},
            "`outer.islands` (2) and `plan.cuts` (unequal) exclude each",
        ),
    ],
)
def test_what_an_outer_loop_excludes_is_refused(
    write_config: WriteConfig,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, dict[str, Any]],
    words: str,
) -> None:
    outer = {"islands": 2, "every": 2, **changes.get("outer", {})}
    config = write_config(**{**changes, "outer": outer})
    assert words in refusal(capsys, "train", str(config))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.stepz=3", "did you mean `train.steps`?"),
        ("steps=3", "`--set` takes section.key=value, not 'steps=3'"),
        ("train.steps", "`--set` takes section.key=value, not 'train.steps'"),
        ("run.transport=tcp", "`run.transport`: Invalid enum value 'tcp'"),
        (
            "run.link_scale=2.0",
            "`run.link_scale` (2.0) must be 1 where `transport` is mpi: only shaped",
        ),
        ("train.steps=x", "`train.steps`: it must be a whole number, not text; it is 'x'"),
        ("run.timeout_s=1e10", "`run.timeout_s` must be from 0.1 to 1000000000, not 1"),
        (
            "run.startup_timeout_s=1e-9",
            "`run.startup_timeout_s` must be from 0.1 to 1000000000, not 1",
        ),
        ("run.seed=9223372036854775808", "`run.seed` must be from 0 to 4294967295, not 9223"),
        (
            "optimizer.weight_decay=1e9",
            "`optimizer.weight_decay` must be from 0 to 1000, not 1",
        ),
        ("optimizer.final_fraction=1.5", "`optimizer.final_fraction` must be from 0 to 1, not 1"),
        ("run.folder=", "`run.folder` must be a path of 1 to"),
        ("run.folder=a\0b", "no NUL, is 'a\\x00b'"),
    ],
)
def test_a_wrong_setting_is_refused(
    write_config: WriteConfig, capsys: pytest.CaptureFixture[str], setting: str, words: str
) -> None:
    assert words in refusal(capsys, "train", str(write_config()), "--set", setting)


def test_a_missing_or_broken_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing.toml"
    assert "cannot read the configuration" in refusal(capsys, "train", str(missing))
    missing.write_text("[run")
    assert "is not TOML" in refusal(capsys, "show", str(missing))
    missing.write_text("")
    assert "`run` is missing; add the section [run]" in refusal(capsys, "show", str(missing))


@pytest.mark.parametrize("path", ["/dev/stdin", "/dev/fd/63", "/proc/self/fd/0"])
def test_what_one_process_has_open_is_refused(
    write_config: WriteConfig, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    words = "is open in this process alone, and other processes of a run read it, too; write it to"
    assert f"the configuration {path} {words}" in refusal(capsys, "train", path)
    config = str(write_config())
    for name in ("plan.file", "plan.cluster", "plan.schedule_file", "paced.profile"):
        line = refusal(capsys, "train", config, "--check", "--set", f"{name}={path}")
        assert f"`{name}` {path} {words}" in line
    setting = f'paced.profile_of=["A100={path}"]'
    assert f"`paced.profile_of` A100={path} {words}" in refusal(
        capsys, "train", config, "--set", setting
    )


def test_a_codec_of_gradients_needs_shares(
    write_config: WriteConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_config(comm={"gradients": "int8"}, plan={"all_reduce": "tree"})
    line = refusal(capsys, "train", str(path))
    assert "`comm.gradients` (int8) and `plan.all_reduce` (tree) exclude each other: a" in line


def test_ranks_that_do_not_fit_the_plan_are_refused(
    write_config: WriteConfig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    line = refusal(capsys, "train", str(write_config()))
    assert "has 4 ranks, but 3 were started; use mpirun -n 4" in line


def test_a_flipped_bit_in_a_token_file_is_refused(
    write_config: WriteConfig, tmp_path: Path, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(dataset, tmp_path / "copy")
    flip_a_bit(copy / "train.npy")
    line = refusal(capsys, "train", str(write_config(data={"folder": str(copy)})))
    assert "train.npy is not: its content does not match its checksum" in line
    (copy / "train.npy").unlink()
    assert "train.npy" in refusal(capsys, "train", str(write_config(data={"folder": str(copy)})))


@pytest.mark.slow
def test_checkpoints_are_neither_overwritten_nor_trusted(
    write_config: WriteConfig, tmp_path: Path, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_rank = {"stages": 1, "replicas": 1}
    path = write_config(plan=one_rank)
    assert "has none" in refusal(capsys, "train", str(path), "--resume")
    run_tree(tiny_tree(tmp_path / "run", dataset, plan=one_rank, train={"steps": 1}))
    assert "continue with --resume" in refusal(capsys, "train", str(path))
    other = write_config(plan=one_rank, model={"num_heads": 4})
    assert "`model.num_heads` (4) must be as in the checkpoint" in refusal(
        capsys, "train", str(other), "--resume"
    )
    flip_a_bit(next((tmp_path / "run").rglob("stage-0.safetensors")))
    assert "does not match its checksum" in refusal(
        capsys, "train", str(write_config(plan=one_rank)), "--resume"
    )


def test_generate_refuses_what_it_cannot_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "has none" in refusal(capsys, "generate", str(tmp_path), "--prompt", "a")


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
