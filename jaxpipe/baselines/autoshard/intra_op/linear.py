"""Solve the problem as an integer linear program: the relaxation first, then branch and bound.

One variable for each choice of a node; exactly one is 1. Choices of a source with equal costs on an
edge are one row, those of a target one column; a flow of 1 goes from the chosen row to the
chosen column, and pays for its cell::

    sum over choices of x = 1                        at each node
    sum over columns of f[row, :] = sum of x there   at each edge, for each row; columns alike
                                    (+ flow through intermediates: `reshard_pruning`)
    sum of x, or of f, with a charge <= y            at each node and edge that has it
    sum over nodes of memory x <= limit              at each peak

Flows are integers where all x are, so that only x and y need be. This is the linearisation of
the paper's equation 1, with flows between classes of choices for its products of one-hot variables.

Source: Zheng et al., "Alpa", OSDI 2022, section 4.2; HiGHS (Huangfu and Hall 2018).
"""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import Bounds, milp
from scipy.sparse import csc_array

from jaxpipe.baselines.autoshard.intra_op.dominate import undominated
from jaxpipe.baselines.autoshard.intra_op.problem import ChoiceProblem, Edge, Kept, restricted
from jaxpipe.baselines.autoshard.intra_op.reshard_pruning import PrunedTable, network_of

Networks = dict[tuple[tuple[int, ...], bytes], PrunedTable]

_WHOLE = 1e-6  # HiGHS' own tolerance for integers (`mip_feasibility_tolerance`)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearProgram:
    """A linear program in HiGHS' form; the first variables are the nodes' choices, in order."""

    seconds: np.ndarray
    matrix: csc_array
    lower: np.ndarray
    upper: np.ndarray
    starts: np.ndarray
    num_integers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSolution:
    """A choice at each node (None: none was found), and a lower bound of all choices.

    `relaxed` says that the relaxation had an integer solution.
    """

    numbers: tuple[int, ...] | None
    bound_s: float
    relaxed: bool


def program_of(problem: ChoiceProblem) -> LinearProgram:
    """Return the integer program of a problem."""
    draft = _Rows()
    sizes = [len(node) for node in problem.nodes]
    # Variables: choices of all nodes, then charges, then the flows of each edge.
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
    num_charges = len(problem.charge_s)
    costs = [*(node.seconds for node in problem.nodes), problem.charge_s]
    draft.num_variables = int(starts[-1]) + num_charges
    for number, node in enumerate(problem.nodes):
        variables = np.arange(starts[number], starts[number + 1])
        draft.add(variables, np.ones(len(variables)), 1.0, 1.0)
        for charge, mask in node.charges.items():
            draft.charge(variables[mask], int(starts[-1]) + charge)
    known: Networks = {}
    costs += [_flows(draft, edge, starts, known) for edge in problem.edges]
    if np.isfinite(problem.memory_limit):
        for memory in np.concatenate([node.memory for node in problem.nodes], axis=1):
            # In parts of the limit: bytes (1e10) next to coefficients of 1 would be badly scaled.
            scale = problem.memory_limit or 1.0
            draft.add(np.arange(starts[-1]), memory / scale, -np.inf, problem.memory_limit / scale)
    return LinearProgram(
        seconds=np.concatenate(costs),
        matrix=draft.matrix(),
        lower=np.array(draft.lower),
        upper=np.array(draft.upper),
        starts=starts,
        num_integers=int(starts[-1]) + num_charges,
    )


def solve(problem: ChoiceProblem, *, time_limit_s: float) -> LinearSolution:
    """Return the best choices found within the time limit, and the bound.

    The limit holds for the relaxation and branch and bound together.

    >>> from jaxpipe.baselines.autoshard.intra_op.problem import Node
    >>> node = Node(seconds=np.array([2.0, 1.0]), memory=np.zeros((1, 2)))
    >>> solve(ChoiceProblem(nodes=(node,), edges=()), time_limit_s=1.0)
    LinearSolution(numbers=(1,), bound_s=1.0, relaxed=True)
    """
    # Pruning first: the number of flows grows with the product of choices at both ends.
    remaining = undominated(problem)
    program = program_of(restricted(problem, remaining))
    # Costs are microseconds: unscaled, they are below the absolute tolerances of HiGHS.
    scale = float(np.abs(program.seconds).max()) or 1.0
    start_s = time.perf_counter()
    relaxed = _run(program, scale, time_limit_s=time_limit_s, integral=False)
    if relaxed.x is not None and relaxed.status == 0:
        values = relaxed.x[: program.num_integers]
        if (np.minimum(values, 1 - values) < _WHOLE).all():
            return LinearSolution(
                numbers=_chosen(program, relaxed.x, remaining),
                bound_s=relaxed.fun * scale,
                relaxed=True,
            )
    # Not below 0: HiGHS would ignore it, and have no limit.
    left_s = max(0.0, time_limit_s - (time.perf_counter() - start_s))
    mixed = _run(program, scale, time_limit_s=left_s, integral=True)
    bound = mixed.mip_dual_bound
    return LinearSolution(
        numbers=None if mixed.x is None else _chosen(program, mixed.x, remaining),
        bound_s=-np.inf if bound is None else bound * scale,
        relaxed=False,
    )


def _run(program: LinearProgram, scale: float, *, time_limit_s: float, integral: bool) -> Any:
    """Return the result of HiGHS, in SciPy's form (it has no public type)."""
    size = len(program.seconds)
    integers = np.zeros(size)
    integers[: program.num_integers] = integral
    return milp(
        program.seconds / scale,
        constraints=(program.matrix, program.lower, program.upper),
        bounds=Bounds(0, 1),
        integrality=integers,
        # HiGHS stops at a gap of 1e-4 by default: the bound would prove less.
        options={"time_limit": time_limit_s, "mip_rel_gap": 1e-9},
    )


def _chosen(program: LinearProgram, values: np.ndarray, remaining: Kept) -> tuple[int, ...]:
    ends = zip(program.starts[:-1], program.starts[1:], remaining, strict=True)
    # argmax, not == 1: a chosen variable may be 1 - 1e-9.
    return tuple(int(at[np.argmax(values[start:end])]) for start, end, at in ends)


def _flows(draft: "_Rows", edge: Edge, starts: np.ndarray, known: Networks) -> np.ndarray:
    """Add the flows of an edge, and return what they cost.

    Where nothing is charged, flow may pass through intermediates, which replace most cells.
    """
    layers = np.stack([edge.seconds, *(mask.astype(float) for mask in edge.charges.values())])
    row_of, rows = _classes(layers.transpose(1, 0, 2))
    column_of, columns = _classes(layers.transpose(2, 0, 1))
    table = edge.seconds[np.ix_(rows, columns)]
    # A charge belongs to a cell: a path through intermediates would avoid the cell and its charge.
    network = _network(table, known) if not edge.charges else _dense(table)
    cells = draft.num_variables + np.arange(len(network.cells))
    intermediates = cells[-1] + 1 + np.arange(len(network.intermediates))
    draft.num_variables += len(cells) + len(intermediates)
    for node, classes, side in ((edge.source, row_of, 0), (edge.target, column_of, 1)):
        for number in range(table.shape[side]):
            # Out of a row flow its chosen x and the flow from intermediates; columns alike.
            members = starts[node] + np.flatnonzero(classes == number)
            out = cells[network.cells[:, side] == number]
            back = intermediates[network.intermediates[:, 1 - side] == number]
            draft.add(
                np.concatenate([out, members, back]),
                np.concatenate([np.ones(len(out)), -np.ones(len(members) + len(back))]),
                0.0,
                0.0,
            )
    for charge, mask in edge.charges.items():
        charged = mask[np.ix_(rows, columns)][network.cells[:, 0], network.cells[:, 1]]
        draft.charge(cells[charged], int(starts[-1]) + charge)
    costs = table[network.cells[:, 0], network.cells[:, 1]]
    return np.concatenate([costs, np.zeros(len(intermediates))])


def _dense(table: np.ndarray) -> PrunedTable:
    return PrunedTable(
        cells=np.argwhere(np.ones(table.shape, dtype=bool)),
        intermediates=np.zeros((0, 2), dtype=int),
    )


def _network(table: np.ndarray, known: Networks) -> PrunedTable:
    """Return the network of a table; layers repeat, so most are known."""
    key = (table.shape, table.tobytes())
    if key not in known:
        known[key] = network_of(table)
    return known[key]


def _classes(lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the class of each line, lines that are equal being one, and a member of each."""
    number: dict[bytes, int] = {}
    texts = [line.tobytes() for line in lines]
    classes = np.array([number.setdefault(text, len(number)) for text in texts])
    # The first member stands for its class: all its lines are equal.
    _, members = np.unique(classes, return_index=True)
    return classes, members


@dataclass(slots=True, kw_only=True)
class _Rows:
    """The rows of a program under construction."""

    num_variables: int = 0
    columns: list[np.ndarray] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)

    def add(self, columns: np.ndarray, values: np.ndarray, lower: float, upper: float) -> None:
        """Add a row: lower <= values of these columns <= upper."""
        self.columns.append(columns)
        self.values.append(values)
        self.lower.append(lower)
        self.upper.append(upper)

    def charge(self, columns: np.ndarray, charge: int) -> None:
        """Add that a charge is paid if one of these columns is chosen."""
        values = np.ones(len(columns) + 1)
        values[-1] = -1.0
        self.add(np.append(columns, charge), values, -np.inf, 0.0)

    def matrix(self) -> csc_array:
        """Return the rows as a sparse matrix."""
        lengths = [len(columns) for columns in self.columns]
        rows = np.repeat(np.arange(len(lengths)), lengths)
        entries = (np.concatenate(self.values), (rows, np.concatenate(self.columns)))
        return csc_array(entries, shape=(len(lengths), self.num_variables))
