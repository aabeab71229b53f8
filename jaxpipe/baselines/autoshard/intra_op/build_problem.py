"""Build the search problem of a graph: a node for each tree, an edge where one reads another.

The choices of a node are those of its root: the layouts of an argument, or the shardings of a
deciding operator. They fix all operators that follow the root, whose collectives are added up. An
array that is read in another layout than it is stored in is resharded: on an edge, or at the node
if the same node makes and reads it; several readers of one layout share one resharding, which is a
charge of theirs. A result with the path of an argument is resharded to that.

Source: Zheng et al., "Alpa", OSDI 2022, section 4.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from jaxpipe.baselines.autoshard.graph import Graph, Operator
from jaxpipe.baselines.autoshard.intra_op.machine import Machine
from jaxpipe.baselines.autoshard.intra_op.operator_tree import Tree, tree_of
from jaxpipe.baselines.autoshard.intra_op.peak_memory import Peak, live_at_peaks
from jaxpipe.baselines.autoshard.intra_op.problem import ChoiceProblem, Edge, Node
from jaxpipe.baselines.autoshard.intra_op.tables import (
    ChoiceTable,
    Combined,
    TableBook,
    account,
    charge_s,
)
from jaxpipe.baselines.autoshard.resharding import LayoutBook
from jaxpipe.baselines.autoshard.strategy import MeshShape


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """The layout of an array, as its number, for each choice of a node."""

    node: int
    layout: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Space:
    """All strategies for a graph on a mesh: the problem, and the meaning of its numbers.

    `deciding[i]` is the node of operator i, if that decides; choices that are kept of each node are
    in `choice_numbers`, by the numbers that its table has for them.
    """

    graph: Graph
    tree: Tree
    layouts: LayoutBook
    tables: TableBook
    problem: ChoiceProblem
    stored: tuple[Stored, ...]
    deciding: Mapping[int, int]
    choice_numbers: tuple[np.ndarray, ...]

    def table(self, operator: Operator) -> ChoiceTable:
        """Return the table of an operator."""
        final = self.tree.final[operator.results[0]]
        return self.tables.of(operator, followed=self.tree.followed[operator.index], final=final)


def space_of(graph: Graph, mesh: MeshShape, machine: Machine) -> Space:
    """Return all strategies for a graph on a mesh of such devices."""
    tree = tree_of(graph)
    layouts = LayoutBook(mesh=mesh, launch_s=machine.launch_s)
    draft = _Draft(
        graph=graph,
        tree=tree,
        tables=TableBook(graph=graph, layouts=layouts, machine=machine),
        live=live_at_peaks(graph, tree.final),
    )
    draft.settle()
    draft.read_all()
    return Space(
        graph=graph,
        tree=tree,
        layouts=layouts,
        tables=draft.tables,
        problem=draft.problem(),
        stored=tuple(draft.stored[array] for array in range(len(graph.arrays))),
        deciding=draft.deciding,
        choice_numbers=tuple(np.arange(len(seconds)) for seconds in draft.seconds),
    )


@dataclass(frozen=True, slots=True)
class _Once:
    """The resharding of an array from one layout to another, paid once by all who read it so."""

    array: int
    source: int
    target: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Read:
    """A node that reads an array: layouts before and after, by choices of source and reader."""

    node: int
    cells: tuple[np.ndarray, ...]


def _cells(source: Stored, node: int, layout: np.ndarray) -> tuple[np.ndarray, ...]:
    return (source.layout, layout) if source.node == node else np.ix_(source.layout, layout)


@dataclass(slots=True, kw_only=True)
class _Draft:
    """The problem under construction: first nodes and their arrays, then the reads between them."""

    graph: Graph
    tree: Tree
    tables: TableBook
    live: np.ndarray
    stored: dict[int, Stored] = field(default_factory=dict)
    deciding: dict[int, int] = field(default_factory=dict)
    seconds: list[np.ndarray] = field(default_factory=list)
    memory: list[np.ndarray] = field(default_factory=list)
    charges: list[dict[int, np.ndarray]] = field(default_factory=list)
    edges: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    edge_charges: dict[tuple[int, int], dict[int, np.ndarray]] = field(default_factory=dict)
    combined: dict[Combined | _Once, int] = field(default_factory=dict)
    reads: dict[int, dict[tuple[int, bytes], _Read]] = field(default_factory=dict)
    _reshard_charges: dict[int, dict[Combined, np.ndarray]] = field(default_factory=dict)

    def settle(self) -> None:
        """Assign each array to a node, the root of a node before its followers."""
        states = self.tree.states
        for array in self.graph.arguments.values():
            if array not in states:
                layouts = self.tables.layouts.of(self.graph.arrays[array])
                self._store(array, self._node(np.zeros(len(layouts.shardings))), None)
        # States have no node: they are stored as the result that replaces them.
        waiting = {result: argument for argument, result in states.items()}
        for index in self.tree.order:
            operator = self.graph.operators[index]
            self._settle_operator(operator)
            for result in operator.results:
                if result in waiting:
                    same = self.stored[result]
                    self._store(waiting[result], same.node, same.layout)

    def _settle_operator(self, operator: Operator) -> None:
        # A follower has no node: its costs go to the root's, by the layout of its operand.
        table, operand = self._table(operator), self.tree.followed[operator.index]
        if operand is None:
            node, choices = self._node(np.zeros(len(table.choices))), None
            self.deciding[operator.index] = node
        else:
            followed = operator.operands[operand]
            assert followed is not None, operator
            node, choices = self.stored[followed].node, self.stored[followed].layout
        # A row of the table for each choice of the node: `layout` maps one to the other.
        pick = np.arange(len(table.choices)) if choices is None else choices
        self.seconds[node] += table.seconds[pick]
        for combined, mask in table.charges.items():
            self._charge(self.charges[node], combined, mask[pick])
        for result, numbers in zip(operator.results, table.results, strict=True):
            self._store(result, node, numbers[pick])

    def read_all(self) -> None:
        """Add the resharding of what each operator, and the next step, reads in another layout."""
        for operator in self.graph.operators:
            table, position = self._table(operator), self.tree.followed[operator.index]
            stored = self.stored[operator.results[0]]
            pick = np.arange(len(table.choices))
            if position is not None:
                followed = operator.operands[position]
                assert followed is not None, operator
                pick = self.stored[followed].layout
            for operand, numbers in zip(operator.operands, table.operands, strict=True):
                if operand is not None and numbers is not None:
                    self._read(operand, stored.node, numbers[pick])
        for path, result in self.graph.results.items():
            argument = self.graph.arguments.get(path)
            # A state is stored as its result: nothing to reshard.
            if argument is not None and argument not in self.tree.states:
                target = self.stored[argument]
                self._read(result, target.node, target.layout)
        for array, reads in self.reads.items():
            self._reshard(array, [*reads.values()])

    def _read(self, array: int, node: int, layout: np.ndarray) -> None:
        """Note that a node reads an array in this layout, for each of its choices."""
        read = _Read(cells=_cells(self.stored[array], node, layout), node=node)
        layouts = self.tables.layouts.of(self.graph.arrays[array])
        # Operators of one node that read alike are one reader.
        if layouts.wire_s[read.cells].any() or layouts.latency_s[read.cells].any():
            self.reads.setdefault(array, {})[node, layout.tobytes()] = read

    def _reshard(self, array: int, reads: list[_Read]) -> None:
        """Add the resharding of an array for its readers; what two may share is a charge."""
        final = self.tree.final[array]
        layouts = self.tables.layouts.of(self.graph.arrays[array])
        # Final arrays start together: their latency is a charge, paid once by all.
        full = layouts.wire_s if final else layouts.wire_s + layouts.latency_s
        counts = np.zeros(full.shape, dtype=int)
        for read in reads:
            seen = np.zeros(full.shape, dtype=bool)
            seen[read.cells] = True
            counts += seen
        # Not on two axes: a charge for each of hundreds of pairs of layouts makes a program of
        # minutes. There each reader pays, and what runs may take less than the problem says.
        is_shared = (counts > 1) & (full > 0) & (len(layouts.mesh.real_axes) == 1)
        for read in reads:
            seconds, charges = self._costs(array, read)
            seconds += np.where(is_shared, 0.0, full)[read.cells]
            for source, target in np.argwhere(is_shared):
                mask = (read.cells[0] == source) & (read.cells[1] == target)
                self._charge(
                    charges,
                    _Once(array, int(source), int(target), float(full[source, target])),
                    mask,
                )
            if final:
                for combined, mask in self._resharding_charges(array).items():
                    self._charge(charges, combined, mask[read.cells])

    def _costs(self, array: int, read: _Read) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """Return the seconds and charges that a reader adds to: its node's, or those of an edge."""
        source = self.stored[array]
        if source.node == read.node:
            # The same choice decides both layouts: one number for each, no edge.
            return self.seconds[read.node], self.charges[read.node]
        # Alpa's R(v, u): every choice of the source against every choice of the reader.
        ends = (source.node, read.node)
        shape = np.broadcast_shapes(*(cell.shape for cell in read.cells))
        return (
            self.edges.setdefault(ends, np.zeros(shape)),
            self.edge_charges.setdefault(ends, {}),
        )

    def _resharding_charges(self, array: int) -> dict[Combined, np.ndarray]:
        """Return the charges of each pair of layouts of a final array."""
        layouts = self.tables.layouts.of(self.graph.arrays[array])
        # `id` is safe as a key: the book keeps all layouts alive.
        if id(layouts) not in self._reshard_charges:
            size = len(layouts.shardings)
            paths = [list(layouts.path(a, b)) for a in range(size) for b in range(size)]
            dtype = layouts.array.dtype
            _, masks = account(paths, dtype, self.tables.layouts, final=True)
            self._reshard_charges[id(layouts)] = {
                key: mask.reshape(size, size) for key, mask in masks.items()
            }
        return self._reshard_charges[id(layouts)]

    def problem(self) -> ChoiceProblem:
        """Return the problem; edges without a cost are left out."""
        nodes = tuple(
            Node(seconds=seconds, memory=memory, charges=charges)
            for seconds, memory, charges in zip(
                self.seconds, self.memory, self.charges, strict=True
            )
        )
        # An edge of zeros would only add rows and flows to the program.
        edges = tuple(
            Edge(
                source=ends[0],
                target=ends[1],
                seconds=seconds,
                charges=self.edge_charges.get(ends, {}),
            )
            for ends, seconds in self.edges.items()
            if seconds.any() or self.edge_charges.get(ends)
        )
        charges = np.array(
            [
                node.seconds if isinstance(node, _Once) else charge_s(node, self.tables.layouts)
                for node in self.combined
            ]
        )
        return ChoiceProblem(nodes=nodes, edges=edges, charge_s=charges)

    def _node(self, seconds: np.ndarray) -> int:
        self.seconds.append(seconds)
        self.memory.append(np.zeros((len(Peak), len(seconds))))
        self.charges.append({})
        return len(self.seconds) - 1

    def _store(self, array: int, node: int, layout: np.ndarray | None) -> None:
        layouts = self.tables.layouts.of(self.graph.arrays[array])
        numbers = np.arange(len(layouts.shardings)) if layout is None else layout
        self.stored[array] = Stored(node=node, layout=numbers)
        self.memory[node] += np.outer(self.live[:, array], layouts.num_bytes[numbers])

    def _charge(
        self, into: dict[int, np.ndarray], combined: Combined | _Once, mask: np.ndarray
    ) -> None:
        # Joined by or: any part of the node has the charge, and it is paid once.
        if mask.any():
            number = self.combined.setdefault(combined, len(self.combined))
            into[number] = into.get(number, False) | mask

    def _table(self, operator: Operator) -> ChoiceTable:
        followed = self.tree.followed[operator.index]
        final = self.tree.final[operator.results[0]]
        return self.tables.of(operator, followed=followed, final=final)
