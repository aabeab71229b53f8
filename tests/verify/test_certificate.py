"""The certificate finds planted errors, names where they are, and finds no others."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from experiments.verify_bugs.cases import case_reference
from experiments.verify_bugs.planted import BUGS
from experiments.verify_bugs.planting import UNLIKE, Bug, PartlyRecompiled, planted
from jaxpipe.runtime.stage.compile_once import CompileOnce
from jaxpipe.verify.certificate import Certificate, Reference, compared
from jaxpipe.verify.differences import TOLERANCE, Subject

pytestmark = pytest.mark.slow

QUICK = tuple(bug for bug in BUGS if bug.case == UNLIKE and not bug.compiled)[::4]
"""A quarter of those that compile nothing: `experiments.verify_bugs` has the results of all."""


@dataclass(frozen=True)
class Case:
    """A case, compiled once, with the certificate of its ranks without an error."""

    expected: Reference
    compiler: CompileOnce
    right: Certificate


@pytest.fixture(scope="module")
def unlike() -> Case:
    expected, compiler = case_reference(UNLIKE), CompileOnce()
    return Case(expected, compiler, compared(expected, compiler=compiler))


def wrong(case: Case, name: str) -> Certificate:
    """Return the certificate of a case with a planted error."""
    bug = next(bug for bug in BUGS if bug.name == name)
    return found(case, bug)


def found(case: Case, bug: Bug) -> Certificate:
    with planted(bug):
        return compared(case.expected, compiler=PartlyRecompiled(case.compiler, bug.compiled))


def test_right_ranks_are_equal_to_one_device_far_below_the_tolerance(unlike: Case):
    assert unlike.right.is_proved
    assert {difference.subject for difference in unlike.right.largest} == set(Subject)
    assert max(difference.error for difference in unlike.right.largest) < TOLERANCE / 1000
    lines = list(unlike.right.lines())
    assert lines[0].startswith("sizes")
    assert any(line.startswith("not covered: rounding of float32") for line in lines)
    assert lines[-1].startswith("verdict     equal to one device: ")


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.case} {bug.name}")
def test_what_an_error_replaces_is_in_the_runtime(bug: Bug):
    with ExitStack() as stack:
        for replacement in bug.plant():  # raises AttributeError for a name that the runtime lost
            stack.enter_context(replacement)


@pytest.mark.parametrize("bug", QUICK, ids=lambda bug: bug.name)
def test_a_planted_error_is_found(unlike: Case, bug: Bug):
    certificate = found(unlike, bug)
    # By a difference, not because the planted code does not run.
    assert certificate.wrong, certificate.failure
    assert not certificate.is_proved


def test_an_error_in_a_message_is_named_by_stage_and_microbatch(unlike: Case):
    certificate = wrong(unlike, "activation of the microbatch before")
    between = [d for d in certificate.wrong if d.subject is Subject.OF_ACTIVATIONS]
    assert (between[0].stage, between[0].microbatch) == (1, 1)
    assert "step 1, stage 1, microbatch 1, replica 0, rank 1" in "".join(certificate.lines())


def test_an_error_in_the_samples_comes_before_its_consequences(unlike: Case):
    certificate = wrong(unlike, "share shifted by one sample")
    assert certificate.wrong[0].subject is Subject.SAMPLES
    assert any(line.startswith("WRONG  samples read: inf, step 1") for line in certificate.lines())
    assert list(certificate.lines())[-1].startswith("verdict     NOT equal to one device")


def test_an_error_of_the_update_is_named_by_tensor(unlike: Case):
    first = wrong(unlike, "last stage not updated").wrong[0]
    assert first.subject is Subject.UPDATES
    assert first.stage == 1
    assert first.tensor.startswith(("blocks.", "head.", "embed.tokens"))


def test_ranks_that_fail_are_a_verdict(unlike: Case):
    def refuse(*_: object, **__: object) -> Any:
        raise MemoryError("no room")

    certificate = compared(unlike.expected, compiler=refuse)
    assert not certificate.is_proved
    assert certificate.failure == "MemoryError: no room"
