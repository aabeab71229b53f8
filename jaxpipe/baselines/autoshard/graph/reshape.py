"""The sharding rule of a reshape: the leading dims of each preserved group are split together.

A reshape keeps groups of dims, each with the same number of elements before and after::

    (batch, seq, 3 * dim) -> (batch, seq, heads, 3 * depth)
     -----  ---  -------      -----  ---  ----------------

Devices that split the leading dim of a group hold the same elements before and after, if their
number divides both leading dims; another dim of a group must be whole.
"""

from math import gcd

from jaxpipe.baselines.autoshard.graph.rule import Rule


def reshape_rule(before: tuple[int, ...], after: tuple[int, ...]) -> Rule:
    """Return the rule of a reshape.

    >>> reshape_rule((2, 6, 12), (12, 4, 3))
    Rule(sizes=(2, 4), operands=((0, None, 1),), results=((0, 1, None),))
    """
    if 0 in before:  # groups are found by their sizes: with 0 elements, all look alike
        return Rule(sizes=(), operands=((None,) * len(before),), results=((None,) * len(after),))
    dims_in: list[int | None] = [None] * len(before)
    dims_out: list[int | None] = [None] * len(after)
    sizes: list[int] = []
    # Dims of size 1 are in no group: they may stand anywhere, and never split.
    left = [dim for dim, size in enumerate(before) if size > 1]
    right = [dim for dim, size in enumerate(after) if size > 1]
    while left:
        dims_in[left[0]] = dims_out[right[0]] = len(sizes)
        # A device count that divides both leading dims divides their greatest common divisor.
        sizes.append(gcd(before[left[0]], after[right[0]]))
        size_in, size_out = before[left.pop(0)], after[right.pop(0)]
        while size_in != size_out:
            if size_in < size_out:
                size_in *= before[left.pop(0)]
            else:
                size_out *= after[right.pop(0)]
    return Rule(sizes=tuple(sizes), operands=(tuple(dims_in),), results=(tuple(dims_out),))
