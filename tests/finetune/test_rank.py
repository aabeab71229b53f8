"""The rank of adapters fits the products that have them."""

import pytest

from jaxpipe.errors import ConfigError
from jaxpipe.finetune import LoraConfig
from jaxpipe.finetune.tuned_model import tuned
from jaxpipe.models.llama import Llama
from tests.oracles.llamas import PLAIN


def test_a_rank_above_the_smaller_side_of_a_product_is_refused() -> None:
    llama = Llama(PLAIN)
    tuned(llama, lora=LoraConfig(rank=8, targets=("key",)), frozen=())
    words = r"`lora.rank` must be at most 8, the smaller side of attention.key \(16 x 8\), not 9"
    with pytest.raises(ConfigError, match=words):
        tuned(llama, lora=LoraConfig(rank=9, targets=("query", "key")), frozen=())
