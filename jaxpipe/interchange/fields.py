"""Fields of a `config.json`, or of another file of JSON, read with one error each.

It has the name, the value, and what is possible.

A field is computed, known to change nothing, or refused: a model whose meaning is not known
completely is another model.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jaxpipe.errors import ConfigError

INERT: Final = frozenset(
    (
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_flash_attn_2_enabled",
        "_model_name_or_path",  # of a folder that was converted from GGUF
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "attention_probs_dropout_prob",
        "attn_implementation",
        "attn_pdrop",
        "auto_map",
        "bad_words_ids",
        "begin_suppress_tokens",
        "bos_token_id",
        "cache_implementation",
        "classifier_dropout",
        "cls_token_id",
        "decoder_start_token_id",
        "diversity_penalty",
        "do_sample",
        "dtype",
        "early_stopping",
        "embd_pdrop",
        "encoder_no_repeat_ngram_size",
        "eos_token_id",
        "exponential_decay_length_penalty",
        "finetuning_task",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "gradient_checkpointing",
        "hidden_dropout",
        "id2label",
        "initializer_range",
        "is_llama_config",
        "keys_to_ignore_at_inference",
        "label2id",
        "length_penalty",
        "mask_token_id",
        "max_length",
        "max_sequence_length",
        "min_length",
        "n_ctx",
        "name_or_path",
        "neftune_noise_alpha",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_labels",
        "num_return_sequences",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "pad_token_id",
        "prefix",
        "pretraining_tp",
        "problem_type",
        "remove_invalid_values",
        "reorder_and_upcast_attn",
        "repetition_penalty",
        "resid_pdrop",
        "return_dict",
        "return_dict_in_generate",
        "sep_token_id",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "suppress_tokens",
        "task_specific_params",
        "temperature",
        "tf_legacy_loss",
        "tokenizer_class",
        "top_k",
        "top_p",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "typical_p",
        "unk_token_id",
        "unsloth_fixed",
        "unsloth_version",
        "use_bfloat16",
        "use_cache",
        "use_return_dict",
    )
)
"""Fields that change no logit of a model in evaluation: those of all classes of `transformers`, and
those that published models and trainers write and no class reads."""

ONLY: Final[dict[str, tuple[Any, ...]]] = {
    "is_decoder": (False, True),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "tie_encoder_decoder": (False,),
    "torchscript": (False,),
    "chunk_size_feed_forward": (0,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "use_bidirectional_attention": (None, False),
    # Of published models; no class of `transformers` reads them.
    "full_attn_mod": (1,),
    "interpolate_factor": (1,),
    "lm_head_bias": (False,),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
}
"""The values with which these fields change nothing; the first is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldFile:
    """A file of fields, by its name: those that change nothing, with any value or with some.

    >>> FieldFile(name="a.json", inert=frozenset(("note",)), only={"mode": ("plain",)}).only["mode"]
    ('plain',)
    """

    name: str
    inert: frozenset[str]
    only: Mapping[str, tuple[Any, ...]]


CONFIG_JSON: Final = FieldFile(name="config.json", inert=INERT, only=ONLY)


def check_known(
    fields: Mapping[str, Any],
    known: Collection[str],
    *,
    kind: str,
    ignored: Collection[str] = (),
    file: FieldFile = CONFIG_JSON,
) -> None:
    """Check that each field of a file is one that is computed, or changes nothing.

    Args:
        fields: the fields.
        known: those that are computed or have been checked.
        kind: what the file describes: for `config.json`, the value of `model_type`.
        ignored: those that the user wants to ignore.
        file: the file.

    Raises:
        ConfigError: there are others, or there is none with a name that is to be ignored.
    """
    if missing := sorted(set(ignored) - fields.keys()):
        raise ConfigError(
            f"`--ignore` {missing[0]} must be the name of a field of `{file.name}`, which has none "
            "such; leave it out"
        )
    for name in ignored:
        if name in known and name not in file.only:
            raise ConfigError(
                f"`--ignore` {name} must be a field that jaxpipe does not compute; leave it out"
            )
    for name, values in file.only.items():
        if name not in ignored:
            check_choice(fields, name, values, file=file)
    unknown = sorted(fields.keys() - file.inert - file.only.keys() - set(known) - set(ignored))
    if unknown:
        values = ", ".join(f"{name:.60} = {fields[name]!r:.60}" for name in unknown[:4])
        rest = f" and {len(unknown) - 4} more" if len(unknown) > 4 else ""
        raise ConfigError(
            f"`{unknown[0]:.60}` in `{file.name}` must be a field that jaxpipe knows of {kind}, "
            f"and these are not: {values}{rest}; if they change no logit, give "
            f"{' '.join(f'`--ignore {name:.60}`' for name in unknown[:4])}"
        )


def check_choice(
    fields: Mapping[str, Any],
    name: str,
    values: tuple[Any, ...],
    *,
    file: FieldFile = CONFIG_JSON,
) -> None:
    """Check that a field has one of the supported values; a missing one has the first.

    Raises:
        ConfigError: it has another.
    """
    value = fields.get(name, values[0])
    # 0 equals False, and 1 True.
    if not any(value == choice and type(value) is type(choice) for choice in values):
        choices = " or ".join(map(repr, values))
        raise ConfigError(
            f"`{name}` in `{file.name}` is {value!r:.80}, and jaxpipe computes only {choices}; "
            "such a model cannot be imported"
        )


def size_of(
    fields: Mapping[str, Any],
    name: str,
    *,
    default: int | None = None,
    file: FieldFile = CONFIG_JSON,
) -> int:
    """Return a whole number; of a field that is missing or null the default.

    Raises:
        ConfigError: it is something else, or missing without a default.
    """
    value = fields.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"`{name}` in `{file.name}` must be a whole number, not {value!r:.80}")
    return value


def number_of(
    fields: Mapping[str, Any],
    name: str,
    *,
    default: float | None = None,
    file: FieldFile = CONFIG_JSON,
) -> float:
    """Return a finite number; of a field that is missing or null the default.

    Raises:
        ConfigError: it is something else, or missing without a default.
    """
    value = fields.get(name)
    value = default if value is None else value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or not is_number or not math.isfinite(value):
        raise ConfigError(f"`{name}` in `{file.name}` must be a finite number, not {value!r:.80}")
    return float(value)


def switch_of(
    fields: Mapping[str, Any],
    name: str,
    *,
    default: bool | None = None,
    file: FieldFile = CONFIG_JSON,
) -> bool:
    """Return true or false; of a field that is missing or null the default.

    Raises:
        ConfigError: it is something else.
    """
    value = fields.get(name)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise ConfigError(f"`{name}` is {value!r:.80} in `{file.name}`; give true or false")
    return value
