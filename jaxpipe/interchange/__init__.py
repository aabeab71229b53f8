"""Import and export of GPT-2 models in the files of Hugging Face `transformers`.

::

    FOLDER/config.json, model.safetensors ──► read_gpt2 ──► GptConfig, tensors ──► begin_run ──► RUN
    RUN ──► checkpoint ──► write_gpt2 ──► FOLDER/config.json, model.safetensors
"""

from jaxpipe.interchange.folder import read_gpt2, write_gpt2
from jaxpipe.interchange.gpt2_config import config_of_gpt2, gpt2_config_of
from jaxpipe.interchange.gpt2_tensors import our_names, shape_of, tensors_of_gpt2, to_gpt2_tensors
from jaxpipe.interchange.start_run import begin_run

__all__ = [
    "begin_run",
    "config_of_gpt2",
    "gpt2_config_of",
    "our_names",
    "read_gpt2",
    "shape_of",
    "tensors_of_gpt2",
    "to_gpt2_tensors",
    "write_gpt2",
]
