"""The names that the package exports."""

import jaxpipe.simulate


def test_all_is_sorted_and_present():
    names = jaxpipe.simulate.__all__
    assert names == sorted(names)
    assert all(hasattr(jaxpipe.simulate, name) for name in names)
