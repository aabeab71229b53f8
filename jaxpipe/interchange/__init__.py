"""Import and export of models in the files of Hugging Face `transformers`.

::

    FOLDER/config.json, *.safetensors ──► read_model ──► ModelConfig, tensors ──► begin_run ──► RUN
    ADAPTER/adapter_config.json, *.safetensors, FOLDER ──► read_adapters ──► the same, adapted
    RUN ──► checkpoint ──► write_model ──► FOLDER/config.json, *.safetensors

GPT-2, and the architectures of `jaxpipe.interchange.architectures`.
"""

from jaxpipe.interchange.beside import BESIDE, GENERATION, keep_beside, write_generation
from jaxpipe.interchange.gpt2_config_json import config_of_gpt2, gpt2_config_of
from jaxpipe.interchange.gpt2_tensors import shape_of, tensors_of_gpt2, to_gpt2_tensors
from jaxpipe.interchange.import_record import (
    ImportRecord,
    keep_record,
    read_record,
    record_of,
    special_tokens,
)
from jaxpipe.interchange.llama_config_json import config_of_llama, llama_config_of
from jaxpipe.interchange.llama_tensors import llama_pairs
from jaxpipe.interchange.model_card import CARD, ModelCard, is_of_user, write_card
from jaxpipe.interchange.model_folder import (
    ExportForm,
    our_names,
    read_gpt2,
    read_model,
    write_gpt2,
    write_model,
)
from jaxpipe.interchange.peft_adapter import write_adapter
from jaxpipe.interchange.peft_fields import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from jaxpipe.interchange.peft_reader import TunedFiles, read_adapters
from jaxpipe.interchange.replaced_folder import replaced_folder
from jaxpipe.interchange.start_run import begin_run

__all__ = [
    "ADAPTER_CONFIG",
    "ADAPTER_WEIGHTS",
    "BESIDE",
    "CARD",
    "GENERATION",
    "ExportForm",
    "ImportRecord",
    "ModelCard",
    "TunedFiles",
    "begin_run",
    "config_of_gpt2",
    "config_of_llama",
    "gpt2_config_of",
    "is_of_user",
    "keep_beside",
    "keep_record",
    "llama_config_of",
    "llama_pairs",
    "our_names",
    "read_adapters",
    "read_gpt2",
    "read_model",
    "read_record",
    "record_of",
    "replaced_folder",
    "shape_of",
    "special_tokens",
    "tensors_of_gpt2",
    "to_gpt2_tensors",
    "write_adapter",
    "write_card",
    "write_generation",
    "write_gpt2",
    "write_model",
]
