"""The published seconds of a setting, where there are any."""

from statistics import mean

from experiments.compare_group.cases import Case, Cases
from experiments.compare_group.setting import Setting
from experiments.dtfm_iteration_time.published import cells
from jaxpipe.simulate import System

MEGATRON = {
    System.MEGATRON_P8: "megatron_p8",
    System.MEGATRON_P4T2: "megatron_p4t2",
    System.MEGATRON_P2T4: "megatron_p2t4",
    System.MEGATRON_T8: "megatron_t8",
}
"""The published name of each of Megatron's layouts."""

_NAMES = {
    Setting.MEGATRON_P8: "megatron_p8",
    Setting.DTFM: "dtfm_scheduled",
    Setting.DTFM_UNSCHEDULED: "dtfm_unscheduled",
    Setting.ZERO3: "zero_s3",
}


def published_s(setting: Setting, case: Case, cases: Cases) -> float | None:
    """Return the mean over the published seeds; None where nothing was published.

    >>> from experiments.compare_group.cases import read_cases
    >>> cases = read_cases()
    >>> round(published_s(Setting.DTFM, cases.cases[0], cases), 2)
    10.14
    """
    if setting is Setting.MEGATRON_OPTIMAL:
        seconds = [_seconds(name, case, cases) for name in MEGATRON.values()]
        return min((each for each in seconds if each is not None), default=None)
    return _seconds(_NAMES[setting], case, cases) if setting in _NAMES else None


def published_layout(case: Case, cases: Cases) -> System | None:
    """Return the fastest of Megatron's layouts as published, if there is any."""
    seconds = {
        system: each
        for system, name in MEGATRON.items()
        if (each := _seconds(name, case, cases)) is not None
    }
    return min(seconds, key=lambda system: seconds[system], default=None)


def _seconds(name: str, case: Case, cases: Cases) -> float | None:
    found = [
        cell.seconds
        for cell in cells()
        if (cell.case, cell.system, cell.layers, cell.batch)
        == (case.published, name, cases.layers, cases.batch)
    ]
    return mean(found) if found else None
