"""The sharding rules of `gather` and of its transpose, `scatter-add`.

A table of rows, with indices, gives one row for each index. The columns are split as they are in
the table; the indices as rows of the result. Devices may also split the rows of the table: each
gives its own rows, zeros else, and the sum of all is the result. The transpose adds rows to a
table: devices that split the indices hold partial tables.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3 (vocabulary-parallel embedding).
"""

from jaxpipe.baselines.autoshard.graph.rule import EquationForm, Rule, Shape, named_rule

Names = list[object]


def gather_rule(form: EquationForm) -> Rule:
    """Return the rule of a gather."""
    numbers = form.params["dimension_numbers"]
    table = _table(
        form.operands[0],
        full=form.params["slice_sizes"],
        collapsed=numbers.collapsed_slice_dims,
        batching=numbers.operand_batching_dims,
    )
    indices = _indices(form.operands[1], numbers.start_indices_batching_dims)
    windows = [
        name
        for dim, name in enumerate(table)
        if dim not in (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    ]
    result = _result(len(form.results[0]), numbers.offset_dims, windows, indices)
    sizes = _sizes((table, form.operands[0]), (indices, form.operands[1]))
    return named_rule((tuple(table), tuple(indices)), (tuple(result),), sizes=sizes)


def scatter_rule(form: EquationForm) -> Rule:
    """Return the rule of a scatter that adds.

    Rows of the table are split freely: each device adds to its own. Devices that split the indices
    start from zeros, but for one.
    """
    numbers = form.params["dimension_numbers"]
    windows_of = [
        dim
        for dim in range(len(form.operands[0]))
        if dim not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    ]
    # A scatter has no `slice_sizes`: its windows are as large as those dims of the updates.
    sizes_of = {
        dim: form.operands[2][position]
        for dim, position in zip(windows_of, numbers.update_window_dims, strict=True)
    }
    table = _table(
        form.operands[0],
        full=tuple(sizes_of.get(dim, 1) for dim in range(len(form.operands[0]))),
        collapsed=numbers.inserted_window_dims,
        batching=numbers.operand_batching_dims,
    )
    indices = _indices(form.operands[1], numbers.scatter_indices_batching_dims)
    windows = [table[dim] for dim in windows_of]
    updates = _result(len(form.operands[2]), numbers.update_window_dims, windows, indices)
    sizes = _sizes((table, form.operands[0]), (indices, form.operands[1]))
    return named_rule((tuple(table), tuple(indices), tuple(updates)), (tuple(table),), sizes=sizes)


def _table(
    shape: Shape, *, full: Shape, collapsed: tuple[int, ...], batching: tuple[int, ...]
) -> Names:
    """Name the table's dims: batches as in the indices, rows, and columns that are taken whole."""
    names: Names = [None] * len(shape)
    for dim, size in enumerate(shape):
        if dim in batching:
            names[dim] = ("batch", batching.index(dim))
        elif dim in collapsed:
            names[dim] = ("row", dim)
        elif full[dim] == size:  # a window that moves within its dim would cross shards
            names[dim] = ("column", dim)
    return names


def _indices(shape: Shape, batching: tuple[int, ...]) -> Names:
    """Name the dims of the indices; the last one holds the coordinates of one index."""
    names: Names = [("index", dim) for dim in range(len(shape) - 1)]
    for position, dim in enumerate(batching):
        names[dim] = ("batch", position)
    return [*names, None]


def _result(rank: int, offsets: tuple[int, ...], windows: Names, indices: Names) -> Names:
    """Name the dims of what is looked up: windows at the offsets, else the indices' in order."""
    names: Names = [None] * rank
    for dim, name in zip(offsets, windows, strict=True):
        names[dim] = name
    others = [dim for dim in range(rank) if dim not in offsets]
    for dim, name in zip(others, indices[:-1], strict=True):
        names[dim] = name
    return names


def _sizes(*named: tuple[Names, Shape]) -> dict[object, int]:
    return {
        name: size
        for names, shape in named
        for name, size in zip(names, shape, strict=True)
        if name is not None
    }
