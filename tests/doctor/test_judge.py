"""What facts mean: every finding that is not well names what to do."""

from dataclasses import replace
from pathlib import Path

import pytest

from jaxpipe.comm import run_ranks
from jaxpipe.doctor import Finding, Health, RankFacts, gather_facts, judge_disk, judge_job
from jaxpipe.jaxpr import TESTED

ZERO = RankFacts(
    rank=0, num_ranks=2, host="a", cores=(0,), versions={"jax": "0.12.0"}, devices=("cpu",)
)
ONE = replace(ZERO, rank=1, cores=(1,), latency_s=1e-5, bytes_per_s=4e9)


def unwell(findings: tuple[Finding, ...]) -> list[tuple[str, Health, str]]:
    return [(f.about, f.health, f.fix) for f in findings if f.health is not Health.OK]


def test_equal_ranks_with_cores_of_their_own_are_well():
    findings = judge_job([ZERO, ONE], num_started=2)
    assert unwell(findings) == []
    assert [f.about for f in findings] == [
        "ranks",
        "versions",
        "cores",
        "devices",
        "products",
        "links",
    ]
    assert findings[-1].message.endswith("rank 1 on a: 0.01 ms, 32 Gbps")


def test_what_computes_products_is_named_with_the_reason():
    zero, one = (
        replace(facts, products=name)
        for facts, name in ((ZERO, "MKL 2026.2"), (ONE, "XLA (`JAXPIPE_BLAS` is off)"))
    )
    (found,) = (f for f in judge_job([zero, one], num_started=2) if f.about == "products")
    assert found.health is Health.OK
    assert found.message == (
        "large products of matrices on CPUs: 1x MKL 2026.2, 1x XLA (`JAXPIPE_BLAS` is off)"
    )


def test_each_rank_is_told_which_gpu_it_uses():
    zero, one = (
        replace(facts, devices=("H200",), gpus=(name,))
        for facts, name in ((ZERO, "GPU 4"), (ONE, "GPU 6"))
    )
    (found,) = (f for f in judge_job([zero, one], num_started=2) if f.about == "devices")
    assert found.health is Health.OK
    assert found.message == "each rank uses H200: rank 0 GPU 4 of a, rank 1 GPU 6 of a"


@pytest.mark.parametrize(("cores", "is_well"), [(range(16), True), (range(1), False)])
def test_ranks_with_gpus_share_cores_if_there_is_one_for_each(cores: range, is_well: bool):
    zero, one = (
        replace(facts, cores=tuple(cores), devices=("H200",), gpus=(name,))
        for facts, name in ((ZERO, "GPU 0"), (ONE, "GPU 1"))
    )
    unwell_names = [about for about, _, _ in unwell(judge_job([zero, one], num_started=2))]
    assert unwell_names == ([] if is_well else ["cores"])


def test_ranks_of_one_host_that_share_a_gpu_are_named():
    zero, one = (replace(facts, devices=("H200",), gpus=("GPU 0",)) for facts in (ZERO, ONE))
    ((about, health, fix),) = unwell(judge_job([zero, one], num_started=2))
    assert (about, health) == ("devices", Health.SLOW)
    assert "no more ranks on a host than it has GPUs" in fix
    assert unwell(judge_job([zero, replace(one, host="b")], num_started=2)) == []


@pytest.mark.parametrize(
    ("version", "is_well"), [("2.30.7", False), ("2.31.2", True), ("2.32", True), ("3.0.1", True)]
)
def test_a_version_of_nccl_with_which_pipelines_may_hang_is_named(version: str, is_well: bool):
    versions = {**ZERO.versions, "nvidia-nccl-cu12": version}
    findings = judge_job(
        [replace(facts, versions=versions) for facts in (ZERO, ONE)], num_started=2
    )
    expected = [("versions", Health.BROKEN, "pip install 'nvidia-nccl-cu12>=2.31.2'")]
    assert unwell(findings) == ([] if is_well else expected)


def test_one_rank_has_no_links():
    findings = judge_job([replace(ZERO, num_ranks=1)], num_started=1)
    assert unwell(findings) == []
    assert [f.about for f in findings] == ["ranks", "versions", "cores", "devices", "products"]


@pytest.mark.parametrize(
    ("changes", "about", "health", "fix"),
    [
        ({"versions": {"jax": "0.11.2"}}, "versions", Health.BROKEN, "install jax==0.12.0 on a"),
        ({"cores": (0, 1)}, "cores", Health.SLOW, "mpirun --bind-to core"),
        ({"devices": ()}, "devices", Health.BROKEN, "CUDA_VISIBLE_DEVICES"),
        ({"devices": ("H200",)}, "devices", Health.SLOW, "run `jaxpipe plan` again"),
        ({"bytes_per_s": 1e6}, "links", Health.SLOW, "shared memory"),
    ],
)
def test_what_is_not_well_is_told_with_its_fix(
    changes: dict[str, object], about: str, health: Health, fix: str
):
    ((found, how, mend),) = unwell(judge_job([ZERO, replace(ONE, **changes)], num_started=2))
    assert (found, how) == (about, health)
    assert fix in mend


def test_a_jax_that_nothing_was_tested_with_is_named_with_the_range():
    newer = [replace(facts, versions={"jax": "0.13.0"}) for facts in (ZERO, ONE)]
    (found,) = (f for f in judge_job(newer, num_started=2) if f.about == "versions")
    assert found.health is Health.SLOW
    assert found.message == f"jaxpipe is tested with {TESTED}, and all ranks have jax 0.13.0"
    assert found.fix


def test_cores_and_slow_links_of_different_hosts_are_their_own():
    far = replace(ONE, host="b", cores=(0,), bytes_per_s=1e6)
    assert unwell(judge_job([ZERO, far], num_started=2)) == []


def test_ranks_that_do_not_meet_have_two_mpis():
    ((about, health, fix),) = unwell(judge_job([ZERO], num_started=2))
    assert (about, health) == ("ranks", Health.BROKEN)
    assert "mpi4py" in fix


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_all_ranks_say_their_facts_over_any_transport(num_ranks: int):
    facts, *others = run_ranks(num_ranks, lambda t: gather_facts(t, timeout_s=30.0))
    assert others == [None] * (num_ranks - 1)
    assert isinstance(facts, tuple)
    assert [each.rank for each in facts] == list(range(num_ranks))
    assert all((each.bytes_per_s or 0) > 0 and (each.latency_s or 0) > 0 for each in facts[1:])


def test_a_disk_is_tried(tmp_path: Path):
    assert judge_disk(tmp_path, room_bytes=0).health is Health.OK
    assert judge_disk(tmp_path, room_bytes=2**80).health is Health.SLOW
    assert list(tmp_path.iterdir()) == []
    missing = judge_disk(tmp_path / "missing")
    assert missing.health is Health.BROKEN
    assert "`run.folder`" in missing.fix
