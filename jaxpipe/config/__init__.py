"""The configuration: one TOML file, checked completely before any work starts."""

from jaxpipe.config.build_job import describe, job_from, model_from, restored_model
from jaxpipe.config.check_data import check_data, check_prepared_data, check_source_tokenizer
from jaxpipe.config.check_here import check_here
from jaxpipe.config.check_order import order_from
from jaxpipe.config.check_run import check_model, check_paced, check_run
from jaxpipe.config.checkpoint_place import check_outlives, check_place, place_in, place_of
from jaxpipe.config.epochs import epochs_line
from jaxpipe.config.kept_inputs import config_in, keep_inputs, keep_tokenizer, tokenizer_of
from jaxpipe.config.notices import notices_of
from jaxpipe.config.read import (
    Config,
    choices_of,
    config_from,
    config_of_settings,
    load_config,
    to_tree,
)
from jaxpipe.config.resolve import check_plan_fits, check_settings, cluster_from
from jaxpipe.config.saved_config import (
    adapter_names,
    has_adapters,
    parameter_names,
    read_merged,
    saved_config,
    saved_lora,
    saved_model,
)
from jaxpipe.config.tuning import continues_adapters, is_tuned, tuned_model_from

__all__ = [
    "Config",
    "adapter_names",
    "check_data",
    "check_here",
    "check_model",
    "check_outlives",
    "check_paced",
    "check_place",
    "check_plan_fits",
    "check_prepared_data",
    "check_run",
    "check_settings",
    "check_source_tokenizer",
    "choices_of",
    "cluster_from",
    "config_from",
    "config_in",
    "config_of_settings",
    "continues_adapters",
    "describe",
    "epochs_line",
    "has_adapters",
    "is_tuned",
    "job_from",
    "keep_inputs",
    "keep_tokenizer",
    "load_config",
    "model_from",
    "notices_of",
    "order_from",
    "parameter_names",
    "place_in",
    "place_of",
    "read_merged",
    "restored_model",
    "saved_config",
    "saved_lora",
    "saved_model",
    "to_tree",
    "tokenizer_of",
    "tuned_model_from",
]
