"""The names that the package exports."""

import topo


def test_all_is_sorted_and_present():
    names = topo.__all__
    assert names == sorted(names)
    assert all(hasattr(topo, name) for name in names)
