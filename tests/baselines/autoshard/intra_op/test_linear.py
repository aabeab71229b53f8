"""The program against all combinations of choices, on graphs of every shape."""

import time
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import milp

from jaxpipe.baselines.autoshard.intra_op import linear
from jaxpipe.baselines.autoshard.intra_op.dominate import undominated
from jaxpipe.baselines.autoshard.intra_op.linear import solve
from jaxpipe.baselines.autoshard.intra_op.problem import ChoiceProblem, Edge, Node, restricted


@st.composite
def problems(draw: st.DrawFn) -> ChoiceProblem:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_nodes, num_charges = draw(st.integers(1, 5)), draw(st.integers(0, 2))
    sizes = [draw(st.integers(1, 4)) for _ in range(num_nodes)]

    def charges(*shape: int) -> dict[int, np.ndarray]:
        return {each: rng.random(shape) < 0.3 for each in range(num_charges) if rng.random() < 0.5}

    nodes = tuple(
        Node(
            seconds=rng.integers(0, 6, size).astype(float),
            memory=rng.integers(0, 6, (2, size)).astype(float),
            charges=charges(size),
        )
        for size in sizes
    )
    edges = tuple(
        Edge(
            source=a,
            target=b,
            seconds=rng.integers(0, 6, (sizes[a], sizes[b])).astype(float),
            charges=charges(sizes[a], sizes[b]),
        )
        for a in range(num_nodes)
        for b in range(num_nodes)
        if a != b and rng.random() < 0.5
    )
    return ChoiceProblem(
        nodes=nodes,
        edges=edges,
        charge_s=rng.integers(1, 6, num_charges).astype(float),
        memory_limit=draw(st.sampled_from([np.inf, float(3 * num_nodes), float(num_nodes)])),
    )


def least(problem: ChoiceProblem) -> float:
    every = product(*(range(len(node)) for node in problem.nodes))
    return min((problem.seconds(each) for each in every if problem.fits(each)), default=np.inf)


@given(problem=problems())
def test_the_answer_is_the_least_of_all(problem: ChoiceProblem) -> None:
    answer = solve(problem, time_limit_s=30)
    if answer.numbers is None:
        assert least(problem) == np.inf
        return
    assert problem.fits(answer.numbers)
    assert problem.seconds(answer.numbers) == pytest.approx(least(problem))
    assert answer.bound_s == pytest.approx(least(problem), abs=1e-5)


@given(problem=problems())
def test_nothing_is_lost_with_what_is_dominated(problem: ChoiceProblem) -> None:
    kept = undominated(problem)
    assert all(len(each) for each in kept)
    assert least(restricted(problem, kept)) == least(problem)


@given(problem=problems(), limit=st.integers(0, 30))
def test_less_memory_never_takes_less_time(problem: ChoiceProblem, limit: int) -> None:
    assert least(problem) <= least(
        replace(problem, memory_limit=min(problem.memory_limit, float(limit)))
    )


def test_one_node_with_one_choice_is_no_choice() -> None:
    node = Node(seconds=np.array([3.0]), memory=np.zeros((1, 1)))
    answer = solve(ChoiceProblem(nodes=(node,), edges=()), time_limit_s=1)
    assert answer.numbers == (0,)
    assert answer.bound_s == 3.0


@pytest.mark.parametrize(("relaxation_s", "left_s"), [(4.0, 6.0), (12.0, 0.0)])
def test_the_time_limit_is_one_for_both_programs(
    relaxation_s: float, left_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, limits_s = [0.0], []

    def timed(*arguments: Any, options: dict[str, float], **others: Any) -> Any:
        limits_s.append(options["time_limit"])
        now_s[0] += relaxation_s
        # The relaxation finds nothing, so that branch and bound follows.
        is_found = len(limits_s) == 2 and options["time_limit"] > 0
        return milp(*arguments, **others) if is_found else unfound

    unfound = SimpleNamespace(x=None, status=1, mip_dual_bound=None)
    monkeypatch.setattr(linear, "milp", timed)
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    nodes = tuple(Node(seconds=np.array([2.0, 1.0]), memory=np.ones((1, 2))) for _ in range(2))
    answer = solve(ChoiceProblem(nodes=nodes, edges=(), memory_limit=2.0), time_limit_s=10.0)
    assert limits_s == [10.0, left_s]
    assert answer.numbers == ((1, 1) if left_s else None)
