"""The start of a run: compilation, the wait for other ranks, the first step, each with its line."""

import io
from pathlib import Path

import pytest

from jaxpipe.config import config_from
from jaxpipe.plan import Plan
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.terminal.progress import LogLines, Pace, Progress, left_text
from jaxpipe.run.terminal.rank_progress import FirstStep, ReportedHooks, first_step
from jaxpipe.runtime.hooks import NoHooks
from jaxpipe.schedule import Op
from tests.runtime.training import tiny_tree

SECONDS = {Op.FORWARD: 4.0, Op.BACKWARD: 8.0, Op.BACKWARD_INPUT: 4.0, Op.BACKWARD_WEIGHT: 4.0}


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def plan_of(schedule: str) -> Plan:
    plan = {"stages": 2, "replicas": 1, "microbatch": 1, "schedule": schedule}
    return plan_from(config_from(tiny_tree(Path("run"), Path("data"), plan=plan)))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_the_estimate_of_the_first_step_is_the_time_that_is_left(schedule: str) -> None:
    plan, clock, pace, said = plan_of(schedule), Clock(), Pace(), list[Progress]()
    program = plan.train_schedule(replica=0)[0]
    computes = [instruction for instruction in program if instruction.op in SECONDS]
    end_s = clock.now_s + sum(SECONDS[instruction.op] for instruction in computes)
    step = first_step(plan, rank=0, say=said.append)
    for number, instruction in enumerate(computes):
        step.before(instruction)
        assert said[-1].text == f"first step: {number} of {len(computes)} computations"
        pace.update(said[-1].done, at_s=clock.now_s)
        left_s = pace.left_s(said[-1].total or 0.0, now_s=clock.now_s)
        assert left_s == (None if number == 0 else pytest.approx(end_s - clock.now_s))
        clock.now_s += SECONDS[instruction.op]


def test_what_follows_the_computations_has_no_estimate() -> None:
    said = list[Progress]()
    program = plan_of("1f1b").train_schedule(replica=0)[0]
    step = FirstStep(program, said.append)
    for instruction in program:
        step.before(instruction)
    texts = [progress.text for progress in said]
    assert texts[-1] == "first step: update"
    assert left_text(said[-1], Pace()) == ""
    # Messages between two computations change nothing that is shown.
    total = sum(instruction.op in SECONDS for instruction in program)
    assert list(dict.fromkeys(texts))[:total] == [
        f"first step: {number} of {total} computations" for number in range(total)
    ]


def test_a_start_has_a_line_for_each_phase() -> None:
    clock, file, plan = Clock(), io.StringIO(), plan_of("1f1b")
    lines = LogLines(file, clock=clock)
    hooks = ReportedHooks(NoHooks(), say=lines.update)

    def pass_s(seconds: int) -> None:
        for _ in range(seconds):
            clock.now_s += 1.0
            lines.tick()

    for done in range(4):
        hooks.before_compile(done=done, total=4)
        pass_s(4 if done < 3 else 12)
    hooks.after_compile()
    pass_s(15)
    hooks.after_read(plan, None, rank=0, step=0)
    for instruction in plan.train_schedule(replica=0)[0]:
        hooks.before_instruction(instruction)
        pass_s(int(SECONDS.get(instruction.op, 0)))
    hooks.before_evaluation()
    pass_s(11)
    hooks.after_read(plan, None, rank=0, step=1)
    printed = file.getvalue().splitlines()
    lines.update(Progress(what="training", done=1, total=9, unit="step", is_logged=True))
    assert printed[0] == "compiling the stages: 2 of 4, 10 s, about 6 s left"
    # The last one took longer than the others: the estimate has passed, and none is shown.
    assert printed[1] == "compiling the stages: 3 of 4, 20 s"
    assert printed[2] == "waiting for ranks that compile, 10 s"
    assert printed[3] == "first step: 2 of 16 computations, 10 s, about 86 s left"
    assert printed[-1] == "computing the held-out loss, 10 s"
    steps = [line for line in printed if line.startswith("first step")]
    assert len(steps) == 9  # of 96 s
    assert steps[-1] == "first step: 15 of 16 computations, 90 s, about 6 s left"


def test_an_estimate_that_has_passed_is_not_shown() -> None:
    pace = Pace()
    for done in range(3):
        pace.update(done, at_s=2.0 * done)
    assert pace.left_s(4, now_s=4.0) == 4.0
    assert pace.left_s(4, now_s=7.0) == 1.0
    assert pace.left_s(4, now_s=8.0) is None
    pace.update(4, at_s=30.0)
    assert pace.left_s(4, now_s=99.0) == 0.0
