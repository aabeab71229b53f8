"""Codecs of sums are verified: one device reproduces the coded sum from what each rank brings."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.collective import AllReduceKind, CodecKind, SyncTree, codec_of
from jaxpipe.collective.sync_tree import ranks
from jaxpipe.comm import AsyncAllReduce, Transport, WireFormat, run_ranks
from jaxpipe.comm.collective import async_all_reduce
from jaxpipe.comm.collective.wire_format import is_floating
from jaxpipe.runtime.stage.compile_once import CompileOnce
from jaxpipe.runtime.step import worker
from jaxpipe.verify.certificate import Reference, compared, reference
from jaxpipe.verify.coded_sums import CodedSums
from jaxpipe.verify.differences import Subject
from jaxpipe.verify.stand_in import DataForm
from tests.config.chosen_settings import Example, checked

KINDS = [kind for kind in CodecKind if kind is not CodecKind.NONE]
TREES: tuple[SyncTree, ...] = (
    0,
    (0, 1),
    (1, 2, 0),
    ((0, 1), 2),
    ((0, 1), (2, 3)),
    ((0, 1, 2), (3, 4)),
    (((0, 1), 2), 3, (4, 5)),
)
CHUNK_BYTES = 200


@given(
    kind=st.sampled_from(KINDS),
    tree=st.sampled_from(TREES),
    size=st.sampled_from((0, 1, 2, 7, 90, 700)),
    feeds_back=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=150, deadline=None)
def test_one_device_has_the_sums_of_ranks(
    kind: CodecKind, tree: SyncTree, size: int, feeds_back: bool, seed: int
):
    codec, num_ranks = codec_of(kind, top_k_fraction=0.1), len(ranks(tree))
    random = np.random.default_rng(seed)
    steps = [random.standard_normal((num_ranks, size)) for _ in range(3)]

    def work(transport: Transport) -> list[np.ndarray]:
        reducer = AsyncAllReduce(transport, feeds_back=feeds_back)
        wire = WireFormat(far=codec, chunk_bytes=CHUNK_BYTES, encodes=is_floating)
        handles = [
            reducer.begin(
                step[transport.rank],
                tree,
                tag=0,
                timeout_s=60.0,
                algorithm=AllReduceKind.HIERARCHICAL,
                wire=wire,
            )
            for step in steps
        ]
        totals = [handle.wait(timeout_s=60.0) for handle in handles]
        reducer.close(timeout_s=60.0)
        return totals

    sums = CodedSums(codec, chunk_bytes=CHUNK_BYTES, feeds_back=feeds_back)
    expected = [sums.total("", dict(enumerate(step)), tree) for step in steps]
    for of_rank in run_ranks(num_ranks, work):
        np.testing.assert_allclose(of_rank, expected, rtol=1e-12, atol=1e-12)


@pytest.fixture(scope="module")
def compiler() -> CompileOnce:
    return CompileOnce()


def _expected(**sections: dict[str, Any]) -> Reference:
    """Return what one device computes, where some targets do not count."""
    config, plan = checked(Example(sections))
    form = DataForm(masked=(True,), labelled=False, packed=False, weights=(1.0,))
    return reference(config, plan, form)


TOP_K = {"gradients": "top_k", "top_k_fraction": 0.1}
SECTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "a tied embedding": {"comm": {"gradients": "int8"}},
    "a loss scale that grows": {
        "comm": TOP_K,
        "loss_scale": {"enabled": True, "growth_steps": 1},
    },
    "unequal cuts": {
        "comm": TOP_K,
        "plan": {"cuts": [[1, 2], [2, 1], [3]], "shares": [4, 2, 2], "microbatch": 2},
    },
    "frozen layers": {"comm": TOP_K, "train": {"frozen": ["blocks.0.*", "embed.*"]}},
    "islands": {
        "outer": {"islands": 2, "every": 2, "codec": "top_k", "top_k_fraction": 0.2},
        "train": {"steps": 6},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SECTIONS)
def test_ranks_that_code_sums_compute_what_one_device_does(name: str, compiler: CompileOnce):
    expected = _expected(**SECTIONS[name])
    assert not any("codec" in reason for reason in expected.left_out)
    certificate = compared(expected, compiler=compiler)
    assert certificate.is_proved, "\n".join(certificate.lines())


def _no_codec() -> Any:
    return patch.object(
        worker, "gradient_wire", lambda comm: WireFormat(chunk_bytes=comm.chunk_bytes)
    )


def _no_feedback() -> Any:
    """Forget the error of each sum."""
    reduce = async_all_reduce.all_reduce_with_feedback

    def forgetful(*given: Any, **options: Any) -> Any:
        total, errors = reduce(*given, **options)
        return total, np.zeros_like(errors)

    return patch.object(async_all_reduce, "all_reduce_with_feedback", forgetful)


@pytest.fixture(scope="module")
def expected_of_top_k() -> Reference:
    return _expected(comm=TOP_K)


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "step"), [(_no_codec, 0), (_no_feedback, 1)])
def test_a_sum_without_its_codec_or_its_feedback_is_found(
    plant: Callable[[], Any], step: int, expected_of_top_k: Reference, compiler: CompileOnce
):
    with plant():
        wrong = compared(expected_of_top_k, compiler=compiler).wrong
    assert (wrong[0].subject, wrong[0].step) == (Subject.GRADIENTS, step)
