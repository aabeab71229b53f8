"""The plans into whose ranks errors are planted, small enough to run once for each error."""

from typing import Any

from experiments.verify_bugs.planting import PACKED, SHARDED, UNLIKE
from jaxpipe.config import config_from
from jaxpipe.propose.resolve import plan_from
from jaxpipe.verify.certificate import Reference, reference
from jaxpipe.verify.stand_in import DataForm

_GPT = {"num_layers": 3, "dim": 8, "num_heads": 2, "sequence": 8, "vocabulary": 16}
_CASES: dict[str, dict[str, dict[str, Any]]] = {
    UNLIKE: {
        "model": {**_GPT, "dropout": 0.1},
        "plan": {"cuts": [[1, 2], [2, 1]], "shares": [6, 2], "microbatch": 2, "schedule": "1f1b"},
        "train": {"batch": 8, "remat": "full"},
    },
    SHARDED: {
        "model": {**_GPT, "tied": False},
        "plan": {
            "stages": 2,
            "replicas": 3,
            "microbatch": 1,
            "schedule": "zb-h1",
            "all_reduce": "ring",
        },
        "train": {"batch": 9, "frozen": ["embed.positions"]},
        "optimizer": {"sharded": True},
        "loss_scale": {"enabled": True},
    },
    PACKED: {
        "model": {**_GPT, "num_layers": 4},
        "plan": {
            "stages": 2,
            "replicas": 2,
            "microbatch": 1,
            "schedule": "interleaved-1f1b",
            "chunks": 2,
        },
        "train": {"batch": 8},
        "lora": {"rank": 2, "targets": ["attention.*", "mlp.up"]},
        "data": {"pack": True},
    },
}


def case_reference(case: str) -> Reference:
    """Return what one device computes of a case."""
    tree = {
        "run": {"folder": "run"},
        **_CASES[case],
        "data": {"folder": "data", **_CASES[case].get("data", {})},
        "plan": {"cluster": "laptop", **_CASES[case]["plan"]},
    }
    config = config_from(tree)
    form = DataForm(
        masked=(case == UNLIKE,), labelled=False, packed=config.data.pack, weights=(1.0,)
    )
    return reference(config, plan_from(config), form)
