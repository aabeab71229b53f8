"""Collectives are read from the text of HLO: kinds, bytes and groups."""

import pytest

from jaxpipe.baselines.autoshard.hlo import (
    HloKind,
    async_collectives,
    bytes_by_kind,
    collectives,
    count_collectives,
)

_TEXT = """
  %p = f32[8]{0} parameter(0)
  %all-reduce.1 = (f16[8,4]{1,0}, f32[2]{0}) all-reduce(%a, %b), replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %all-gather.2 = bf16[4,8]{1,0:T(8)} all-gather(%c), replica_groups=[1,4]<=[4], dimensions={0}
  %ags = (f32[2]{0}, f32[8]{0}) all-gather-start(%d), replica_groups=[2,4]<=[8]
  %agd = f32[8]{0} all-gather-done(%ags)
  %rs = s32[3]{0} reduce-scatter(%e), replica_groups=[1,2]<=[2], to_apply=%add
  %a2a = f32[] all-to-all(%f)
  %fusion = f32[8]{0} fusion(%all-reduce.1), kind=kLoop, calls=%all-reduce-like
"""  # noqa: E501


def test_each_combined_tuple_and_each_start_counts_once() -> None:
    assert count_collectives(collectives(_TEXT)) == {
        "allreduce": 1,
        "allgather": 2,
        "reducescatter": 1,
        "all2all": 1,
        "num_comm": 5,
    }


def test_bytes_are_those_of_the_whole_arrays() -> None:
    found = collectives(_TEXT)
    assert [each.num_bytes for each in found] == [72, 64, 32, 24, 4]
    assert [each.group for each in found] == [2, 4, 4, 2, 0]
    assert bytes_by_kind(found)[HloKind.ALL_GATHER] == 96
    assert found[0].dtypes == ("f16", "f32")


@pytest.mark.parametrize(
    ("shape", "name", "num_bytes"),
    [
        # As the compiler of jax 0.10 writes them for V100s, 8 devices.
        ("f32[64,64]{1,0}", "all-reduce", 16384),
        ("(f32[64,64]{1,0}, f32[2]{0})", "all-reduce", 16392),
        ("(f32[64,64]{1,0}, f32[512,64]{1,0})", "all-gather", 131072),
        ("((f32[64,512]{0,1}), f32[64,512]{0,1})", "all-to-all", 131072),
        ("((f32[64,64]{1,0}), f32[8,64]{1,0})", "reduce-scatter", 16384),
        ("(f32[64,64]{1,0}, f32[64,64]{1,0})", "collective-permute", 16384),
        # Several arrays at once, and the context of an older compiler.
        ("((f32[8]{0}, f16[8]{0}), (f32[64]{0}, f16[64]{0}))", "all-gather", 384),
        ("((f32[8]{0:T(8)}, f16[8]{0}), (f32[8]{0}, f16[8]{0}), u32[])", "all-to-all", 48),
        ("(f32[8]{0}, f32[8]{0}, u32[], u32[])", "collective-permute", 32),
    ],
)
def test_the_operands_of_a_start_are_not_counted(shape: str, name: str, num_bytes: int) -> None:
    line = f"  %{name}-start = {shape} {name}-start(%a), replica_groups={{{{0,1,2,3,4,5,6,7}}}}"
    assert [each.num_bytes for each in collectives(line)] == [num_bytes]


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,2},{1,3}}", 2),
        ("[2,4]<=[8]", 4),
        ("{}", 0),
        # The compilers of jax 0.11 and 0.12 name the axes of a mesh.
        ("mesh['dp'=2,'op'=4] {'dp'}", 2),
        ("mesh['dp'=2,'op'=4] {'dp','op'}", 8),
        ("mesh['dp'=2,'op'=4] {'op':(2)2}", 2),
    ],
)
def test_groups_are_read_in_every_form(groups: str, size: int) -> None:
    line = (
        f"  %r = f32[2]{{0}} all-reduce(%a), channel_id=1, replica_groups={groups}, to_apply=%add"
    )
    assert [each.group for each in collectives(line)] == [size]


@pytest.mark.parametrize("text", ["", "HloModule empty", "  %x = f32[2]{0} add(%a, %b)"])
def test_no_collective(text: str) -> None:
    assert collectives(text) == ()
    assert async_collectives(text) == ()


def test_what_is_issued_before_the_end_is_beside_a_collective() -> None:
    text = """
  %s1 = f32[2] all-reduce-start(%a)
  %s10 = ((f32[2]), f32[1]) async-start(%b), calls=%reduce-scatter.3
  %f = f32[2] fusion(%c), kind=kLoop
  %d10 = f32[1] async-done(%s10), calls=%reduce-scatter.3
  %g = f32[2] custom-call(%c)
  %t = f32[2] get-tuple-element(%f)
  %d1 = f32[2] all-reduce-done(%s1)
  %s2 = f32[2] all-reduce-start(%d1)
  %d2 = f32[2] all-reduce-done(%s2)
"""
    found = [(each.name, each.num_beside) for each in async_collectives(text)]
    assert found == [("s10", 1), ("s1", 2), ("s2", 0)]


def test_an_end_belongs_to_the_start_of_its_whole_name() -> None:
    text = """
  %all-reduce-start = f32[2] all-reduce-start(%a)
  %all-reduce-start.1 = f32[2] all-reduce-start(%b)
  %f = f32[2] fusion(%c), kind=kLoop
  %all-reduce-start.1-done = f32[2] all-reduce-done(%all-reduce-start.1)
  %g = f32[2] fusion(%c), kind=kLoop
  %done = f32[2] all-reduce-done(%all-reduce-start)
"""
    found = [(each.name, each.num_beside) for each in async_collectives(text)]
    assert found == [("all-reduce-start.1", 1), ("all-reduce-start", 2)]


@pytest.mark.parametrize("groups", [", replica_groups={}", ""])
@pytest.mark.parametrize(
    ("header", "num_bytes"),
    [
        ("HloModule step, is_scheduled=true, replica_count=2, num_partitions=4", 96),
        ("HloModule step, num_partitions=8", 96),
        ("HloModule step", 12),
    ],
)
def test_a_group_that_is_not_named_is_all_devices(groups: str, header: str, num_bytes: int) -> None:
    line = f"  %rs = s32[3]{{0}} reduce-scatter(%e){groups}, to_apply=%add"
    (found,) = collectives(f"{header}\n\n{line}\n")
    assert (found.num_bytes, found.group) == (num_bytes, 0)


def test_a_permute_sends_all_its_bytes() -> None:
    line = "  %p = f32[16]{0} collective-permute(%a), source_target_pairs={{0,1},{1,0}}"
    (found,) = collectives(line)
    assert found.num_bytes == 64
    assert [found.ring_bytes(num_devices) for num_devices in (1, 2, 4)] == [0, 64, 64]
