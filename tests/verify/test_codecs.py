"""Codecs between stages are verified: one device applies them in both directions, too."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from jaxpipe.collective import CodecKind
from jaxpipe.comm import CompressedTransport
from jaxpipe.comm.forwarding import ForwardingTransport
from jaxpipe.config import Config
from jaxpipe.plan import Plan
from jaxpipe.runtime.stage.compile_once import CompileOnce
from jaxpipe.runtime.step import worker
from jaxpipe.verify.certificate import Reference, compared, reference
from jaxpipe.verify.differences import Subject
from jaxpipe.verify.smaller_plan import shrunk
from jaxpipe.verify.stand_in import DataForm
from tests.config.chosen_settings import Example, checked

KINDS = [kind for kind in CodecKind if kind is not CodecKind.NONE and not kind.facts.needs_feedback]


def coded(kind: CodecKind, **sections: dict[str, Any]) -> tuple[Config, Plan]:
    return checked(Example({"comm": {"boundary": kind.value}, **sections}))


def of_masked(config: Config, plan: Plan) -> Reference:
    """Return what one device computes where some targets do not count."""
    form = DataForm(masked=(True,), labelled=False, packed=False, weights=(1.0,))
    return reference(config, plan, form)


@pytest.fixture(scope="module")
def compiler() -> CompileOnce:
    return CompileOnce()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_with_a_codec_compute_what_one_device_does_with_it(
    kind: CodecKind, compiler: CompileOnce
):
    expected = of_masked(*coded(kind, loss_scale={"enabled": True}))
    assert not any("codec" in reason for reason in expected.left_out)
    certificate = compared(expected, compiler=compiler)
    assert certificate.is_proved, "\n".join(certificate.lines())


def _gradients_as_they_are() -> Any:
    """Encode what goes to the next stage alone."""
    send, receive = CompressedTransport.send, CompressedTransport.receive

    def sends(self: Any, array: Any, *, to: int, tag: int) -> Any:
        method = send if to > self.rank else ForwardingTransport.send
        return method(self, array, to=to, tag=tag)

    def receives(self: Any, like: Any, *, source: int, tag: int) -> Any:
        method = receive if source < self.rank else ForwardingTransport.receive
        return method(self, like, source=source, tag=tag)

    return patch.multiple(CompressedTransport, send=sends, receive=receives)


def _no_codec() -> Any:
    return patch.object(worker, "boundary_codecs", lambda *_, **__: {})


@pytest.fixture(scope="module")
def expected_of_three_stages() -> Reference:
    return of_masked(*coded(CodecKind.BF16, plan={"stages": 3, "replicas": 1}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "subject"),
    [(_no_codec, Subject.ACTIVATIONS), (_gradients_as_they_are, Subject.OF_ACTIVATIONS)],
)
def test_a_direction_without_the_codec_is_found(
    plant: Callable[[], Any],
    subject: Subject,
    expected_of_three_stages: Reference,
    compiler: CompileOnce,
):
    with plant():
        wrong = compared(expected_of_three_stages, compiler=compiler).wrong
    assert wrong[0].subject is subject
    assert compared(expected_of_three_stages, compiler=compiler).is_proved


@pytest.mark.slow
def test_replicas_with_codecs_of_their_own_both_remain(compiler: CompileOnce):
    config, plan = checked(Example({"plan": {"replicas": 4}}))
    kinds = (CodecKind.NONE, CodecKind.INT8, CodecKind.NONE, CodecKind.INT8)
    pipelines = tuple(
        replace(pipeline, codecs=(kind,))
        for pipeline, kind in zip(plan.pipelines, kinds, strict=True)
    )
    plan = replace(plan, pipelines=pipelines)
    small = shrunk(config, plan)
    assert {p.codecs for p in small.plan.pipelines} == {(CodecKind.NONE,), (CodecKind.INT8,)}
    certificate = compared(of_masked(config, plan), compiler=compiler)
    assert certificate.is_proved, "\n".join(certificate.lines())
