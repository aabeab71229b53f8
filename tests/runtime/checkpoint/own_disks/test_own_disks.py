"""Ranks with a disk of their own save, lose a disk, and bring together what is left: in threads."""

import logging
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.comm import Transport, run_ranks
from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.plan import Plan, default_plan
from jaxpipe.runtime.checkpoint import Checkpoint, newest_valid
from jaxpipe.runtime.checkpoint.async_saver import Saver
from jaxpipe.runtime.checkpoint.folders import committed_folders
from jaxpipe.runtime.checkpoint.manifest import TensorEntry
from jaxpipe.runtime.checkpoint.own_disks import commit_by_message
from jaxpipe.runtime.checkpoint.own_disks.available import newest_available
from jaxpipe.runtime.checkpoint.own_disks.commit_by_message import CommitByMessage
from jaxpipe.runtime.checkpoint.own_disks.copies import copies_of, in_rounds
from jaxpipe.runtime.checkpoint.own_disks.disks import Disks
from jaxpipe.runtime.checkpoint.own_disks.fetch import fetch, file_moves
from jaxpipe.runtime.checkpoint.own_disks.file_transfer import receive_file, send_file
from jaxpipe.runtime.checkpoint.own_disks.find_disks import find_disks
from jaxpipe.runtime.checkpoint.save_parts import Snapshot, Written
from jaxpipe.runtime.hooks import NO_HOOKS, Hooks, SavePhase
from tests.plan_section import decided

TIMEOUT_S = 20.0
HOSTS = ("a", "b", "c", "d")
APART = Disks(leader_of=(0, 1, 2, 3), hosts=HOSTS)


@cache
def plan_of(stages: int, replicas: int) -> Plan:
    config = decided(cluster="two-region", stages=stages, replicas=replicas)
    return default_plan(config, topo.load("two-region"), num_layers=4, batch=4, tied=False)


def folder_of(root: Path, rank: int) -> Path:
    return root / f"host-{APART.leader_of[rank]}" / "run"


def tensors_of(rank: int, step: int) -> dict[str, np.ndarray]:
    values = np.random.default_rng(7 * step + rank).normal(size=(3, 5)).astype(np.float32)
    return {f"of {rank}": values}


class KilledError(Exception):
    """Ends a rank in the middle of a save."""


class FailAt(Hooks):
    def __init__(self, phase: SavePhase) -> None:
        self.phase = phase

    def before_save_phase(self, phase: SavePhase) -> None:
        if phase is self.phase:
            raise KilledError


def saver_of(transport: Transport, root: Path, *, hooks: Hooks | None = None) -> Saver:
    common: Any = {
        "folder": folder_of(root, transport.rank),
        "keep": 2,
        "timeout_s": TIMEOUT_S,
        "hooks": hooks or NO_HOOKS,
    }
    copies = copies_of(plan_of(2, 2), APART)
    return Saver(transport, **common, apart=CommitByMessage(transport, copies, **common))


def save(
    root: Path, steps: Sequence[int], *, failing: dict[int, Hooks] | None = None
) -> list[str | None]:
    """Save as four ranks, of which the first two have shards, as those of replica 0 do."""

    def work(transport: Transport) -> str | None:
        rank = transport.rank
        saver = saver_of(transport, root, hooks=(failing or {}).get(rank))
        for step in steps:
            shards = {f"stage-{rank}": tensors_of(rank, step)} if rank < 2 else {}
            saver.begin(Snapshot(step=step, shards=shards, metadata={"seed": 1}))
        return saver.close()

    return run_ranks(4, work)


def resume(root: Path, needs: dict[int, set[str]]) -> list[Checkpoint]:
    def work(transport: Transport) -> Checkpoint:
        folder = folder_of(root, transport.rank)
        found = newest_available(transport, APART, folder, timeout_s=TIMEOUT_S)
        return fetch(
            transport,
            APART,
            folder,
            found,
            needs=needs.get(transport.rank, set()),
            timeout_s=TIMEOUT_S,
        )

    return run_ranks(4, work)


STAGES = {0: {"stage-0.safetensors"}, 1: {"stage-1.safetensors"}}
EVERY = {**STAGES, 2: STAGES[0], 3: STAGES[1]}


def check(found: Checkpoint, rank: int, *, step: int) -> None:
    (name,) = expected = tensors_of(rank, step)
    assert found.step == step
    np.testing.assert_array_equal(found.read([name])[name], expected[name])


def test_every_shard_is_on_two_disks_and_the_manifest_on_all(tmp_path: Path) -> None:
    assert save(tmp_path, [1, 2, 3]) == [None] * 4
    held = [
        sorted(path.name for path in committed_folders(folder_of(tmp_path, rank))[3].iterdir())
        for rank in range(4)
    ]
    own = ["manifest.json", "stage-0.safetensors"], ["manifest.json", "stage-1.safetensors"]
    assert held == [*own, *own]
    manifests = {
        (folder / "manifest.json").read_bytes()
        for rank in range(4)
        for folder in [committed_folders(folder_of(tmp_path, rank))[3]]
    }
    assert len(manifests) == 1
    assert [sorted(committed_folders(folder_of(tmp_path, rank))) for rank in range(4)] == [
        [2, 3]
    ] * 4


def test_any_lost_disk_is_made_up_for_bit_by_bit(tmp_path: Path) -> None:
    save(tmp_path, [20])
    for lost in range(4):
        root = tmp_path / f"without-{lost}"
        for rank in range(4):
            if rank != lost:
                shutil.copytree(folder_of(tmp_path, rank), folder_of(root, rank))
        found = resume(root, EVERY)
        for rank in range(4):
            check(found[rank], rank % 2, step=20)


def test_what_is_lost_is_said_and_an_older_step_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, [20, 40])
    for rank in (1, 3):  # the two disks that hold stage 1
        shutil.rmtree(committed_folders(folder_of(tmp_path, rank))[40])
    with caplog.at_level(logging.WARNING):
        found = resume(tmp_path, STAGES)
    check(found[1], 1, step=20)
    assert "step 40 lacks stage-1.safetensors, which no disk holds intact" in caplog.text
    assert "asked: a, b, c, d" in caplog.text
    for rank in (1, 3):
        shutil.rmtree(folder_of(tmp_path, rank))
    with pytest.raises(CheckpointError, match=r"none of 2 .* lacks stage-1\.safetensors"):
        resume(tmp_path, STAGES)
    for rank in (0, 2):
        shutil.rmtree(folder_of(tmp_path, rank))
    with pytest.raises(CheckpointError, match="has none on any host"):
        resume(tmp_path, STAGES)


@pytest.mark.parametrize("damage", ["flip", "truncate"])
def test_a_damaged_file_is_replaced_by_the_copy(tmp_path: Path, damage: str) -> None:
    save(tmp_path, [20])
    path = committed_folders(folder_of(tmp_path, 1))[20] / "stage-1.safetensors"
    intact = path.read_bytes()
    flipped = intact[:-1] + bytes([intact[-1] ^ 1])
    path.write_bytes(flipped if damage == "flip" else intact[: len(intact) // 2])
    check(resume(tmp_path, STAGES)[1], 1, step=20)
    assert path.read_bytes() == intact


@pytest.mark.parametrize("phase", [SavePhase.RENAME, SavePhase.PRUNE])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_host_that_dies_while_it_commits_costs_nothing(
    tmp_path: Path, phase: SavePhase, rank: int
) -> None:
    save(tmp_path, [20])
    with pytest.raises(KilledError):
        save(tmp_path, [40], failing={rank: FailAt(phase)})
    # Its disk is gone with it; others may not have heard of the commit.
    shutil.rmtree(folder_of(tmp_path, rank))
    found = resume(tmp_path, STAGES)
    step = found[0].step
    assert step in (20, 40)
    for stage in (0, 1):
        check(found[stage], stage, step=step)


def test_a_save_that_no_disk_has_committed_leaves_the_one_before(tmp_path: Path) -> None:
    save(tmp_path, [20])
    with pytest.raises(KilledError):
        save(tmp_path, [40], failing={0: FailAt(SavePhase.MANIFEST)})
    check(resume(tmp_path, STAGES)[0], 0, step=20)
    assert save(tmp_path, [40]) == [None] * 4
    check(resume(tmp_path, STAGES)[0], 0, step=40)


def test_one_disk_may_have_committed_alone(tmp_path: Path) -> None:
    """The others have their files, without a manifest that describes them."""
    save(tmp_path, [20])
    for rank in (1, 2, 3):
        committed = committed_folders(folder_of(tmp_path, rank))[20]
        (committed / "manifest.json").unlink()
        committed.rename(committed.with_suffix(".partial"))
    found = resume(tmp_path, EVERY)
    for rank in range(4):
        check(found[rank], rank % 2, step=20)
        assert list(committed_folders(folder_of(tmp_path, rank))) == [20]


def test_the_disks_together_are_a_checkpoint_for_any_reader(tmp_path: Path) -> None:
    save(tmp_path, [20])
    everything = set().union(*EVERY.values())
    resume(tmp_path, {0: everything})
    assert newest_valid(folder_of(tmp_path, 0)).step == 20


def test_a_full_disk_is_named_and_all_discard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def refuse(folder: Path, *_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(commit_by_message, "verify_copy", refuse)
    first, *others = save(tmp_path, [20])
    assert first == "rank 2 on c: [Errno 28] No space left on device"
    assert others == [None] * 3
    assert not list(tmp_path.rglob("step-*"))


def test_disks_are_found_out(tmp_path: Path) -> None:
    def disks(folders: Sequence[str]) -> tuple[int, ...]:
        def work(transport: Transport) -> Disks:
            return find_disks(transport, tmp_path / folders[transport.rank], timeout_s=TIMEOUT_S)

        found = run_ranks(len(folders), work)
        assert len(set(found)) == 1
        return found[0].leader_of

    assert disks("aaaa") == (0, 0, 0, 0)
    assert disks("abab") == (0, 1, 0, 1)
    assert disks("abca") == (0, 1, 2, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused_on_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "b").touch()

    def work(transport: Transport) -> str:
        with pytest.raises(ConfigError) as refusal:
            find_disks(transport, tmp_path / "ab"[transport.rank] / "run", timeout_s=TIMEOUT_S)
        return str(refusal.value)

    first, second = run_ranks(2, work)
    assert first.rpartition("written: ")[2] == second.rpartition("written: ")[2]
    assert "`run.folder`" in first
    assert "Not a directory" in first
    assert not (tmp_path / "a" / "run").exists()


@given(st.data())
def test_copies_share_no_disk_and_no_host_where_another_is_left(data: st.DataObject) -> None:
    stages, replicas = data.draw(st.sampled_from([(1, 4), (2, 2), (4, 1), (2, 1), (1, 2)]))
    num_ranks = stages * replicas
    hosts = data.draw(st.lists(st.sampled_from("abc"), min_size=num_ranks, max_size=num_ranks))
    disks = Disks(leader_of=tuple(hosts.index(host) for host in hosts), hosts=tuple(hosts))
    pairs = copies_of(plan_of(stages, replicas), disks).pairs
    assert [rank for rank, _ in sorted(pairs)] == (
        list(range(num_ranks)) if len(set(hosts)) > 1 else []
    )
    for rank, keeper in pairs:
        assert hosts[rank] != hosts[keeper]


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda p: p[0] != p[1])))
def test_rounds_have_every_pair_once(pairs: set[tuple[int, int]]) -> None:
    ordered = in_rounds(sorted(pairs))
    assert sorted(ordered) == sorted(pairs)


@given(st.data())
def test_moves_bring_exactly_what_is_missing(data: st.DataObject) -> None:
    files = st.frozensets(st.sampled_from("wxyz"))
    held = data.draw(st.lists(files, min_size=1, max_size=4))
    held = [*held, frozenset("wxyz") - frozenset().union(*held)]
    needed = data.draw(st.lists(files, min_size=len(held), max_size=len(held)))
    moves = file_moves(held, needed)
    for to, (has, wants) in enumerate(zip(held, needed, strict=True)):
        assert sorted(m.file for m in moves if m.to == to) == sorted(wants - has)
    assert all(move.file in held[move.source] for move in moves)


@pytest.mark.parametrize("size", [0, 1, 2**20 - 1, 2**20, 9 * 2**20 + 17])
def test_a_file_arrives_as_it_was(tmp_path: Path, size: int) -> None:
    content = np.random.default_rng(size).integers(256, size=size, dtype=np.uint8).tobytes()
    (tmp_path / "here").write_bytes(content)
    assert move(tmp_path / "here", tmp_path / "there") == ""
    assert (tmp_path / "there").read_bytes() == content


def test_ends_that_fail_do_not_leave_the_other_waiting(tmp_path: Path) -> None:
    content = tmp_path / "content"
    content.write_bytes(bytes(3 * 2**20))
    assert "Is a directory" in move(content, tmp_path)
    assert move(tmp_path / "nowhere", tmp_path / "empty") == ""
    assert (tmp_path / "empty").read_bytes() == b""


def move(source: Path, target: Path) -> str:
    def work(transport: Transport) -> str:
        if transport.rank == 0:
            send_file(transport, source, to=1, timeout_s=TIMEOUT_S)
            return ""
        return receive_file(transport, target, source=0, timeout_s=TIMEOUT_S)

    return run_ranks(2, work)[1]


def test_a_rank_cannot_name_a_file_outside_of_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = TensorEntry(name="x", file="../x", dtype="bool", shape=(), checksum="")
    monkeypatch.setattr(
        CommitByMessage, "_write", lambda *_: Written(entries=(entry,), headers={"../x": ""})
    )
    with pytest.raises(CheckpointError, match="not the name of a file in this folder"):
        save(tmp_path, [1])
    assert not list(tmp_path.rglob("x"))
