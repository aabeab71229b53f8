"""Import and export of models in the files of Hugging Face `transformers`.

::

    FOLDER/config.json, *.safetensors ──► read_model ──► ModelConfig, tensors ──► begin_run ──► RUN
    RUN ──► checkpoint ──► write_model ──► FOLDER/config.json, *.safetensors

GPT-2, Llama, Mistral, Qwen 2 and 3, and Gemma 2.
"""

from jaxpipe.interchange.beside import BESIDE, keep_beside
from jaxpipe.interchange.gpt2_config_json import config_of_gpt2, gpt2_config_of
from jaxpipe.interchange.gpt2_tensors import shape_of, tensors_of_gpt2, to_gpt2_tensors
from jaxpipe.interchange.llama_config_json import config_of_llama, llama_config_of
from jaxpipe.interchange.llama_tensors import llama_pairs
from jaxpipe.interchange.model_folder import (
    our_names,
    read_gpt2,
    read_model,
    write_gpt2,
    write_model,
)
from jaxpipe.interchange.peft_adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS, write_adapter
from jaxpipe.interchange.start_run import begin_run

__all__ = [
    "ADAPTER_CONFIG",
    "ADAPTER_WEIGHTS",
    "BESIDE",
    "begin_run",
    "config_of_gpt2",
    "config_of_llama",
    "gpt2_config_of",
    "keep_beside",
    "llama_config_of",
    "llama_pairs",
    "our_names",
    "read_gpt2",
    "read_model",
    "shape_of",
    "tensors_of_gpt2",
    "to_gpt2_tensors",
    "write_adapter",
    "write_gpt2",
    "write_model",
]
