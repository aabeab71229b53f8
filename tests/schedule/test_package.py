"""The names that the package exports."""

import jaxpipe.schedule


def test_all_is_sorted_and_present():
    names = jaxpipe.schedule.__all__
    assert names == sorted(names)
    assert all(hasattr(jaxpipe.schedule, name) for name in names)
