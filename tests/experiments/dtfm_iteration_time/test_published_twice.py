"""What published times say of each other, without a model."""

from pathlib import Path

from experiments.dtfm_iteration_time import published_twice
from experiments.table import read_csv

LAYOUTS = read_csv(Path(published_twice.__file__).parent / "results" / "layouts.csv")


def test_a_pair_is_one_layout_with_recomputation_and_without():
    pairs = published_twice.recomputed_pairs(LAYOUTS)
    assert len(pairs) == 9
    (tensors,) = [
        row for row in pairs if (row["layout"], row["microbatch"]) == ("megatron-t8", "2")
    ]
    assert tensors["published"] == f"{41.06 / 18.75:.2f}"  # of the published table


def test_runs_out_of_memory_and_other_precisions_have_no_pair():
    run = {"hosts": "6", "precision": "fp16", "system": "a", "microbatch": "1"}
    rows = [
        run | {"recompute": "yes", "published_s": "3.0", "simulated_s": "2.0"},
        run | {"recompute": "no", "published_s": "out of memory", "simulated_s": "1.0"},
    ]
    assert published_twice.recomputed_pairs(rows) == []
    rows[1]["published_s"] = "1.5"
    assert published_twice.recomputed_pairs(rows)[0]["published"] == "2.00"
    rows[1]["precision"] = "fp32"
    assert published_twice.recomputed_pairs(rows) == []
