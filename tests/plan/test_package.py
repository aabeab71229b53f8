"""The names that the packages export."""

from types import ModuleType

import pytest

import jaxpipe.plan
import jaxpipe.plan.dtfm


@pytest.mark.parametrize("package", [jaxpipe.plan, jaxpipe.plan.dtfm], ids=lambda p: p.__name__)
def test_all_is_sorted_and_present(package: ModuleType):
    names = package.__all__
    assert names == sorted(names)
    assert all(hasattr(package, name) for name in names)
