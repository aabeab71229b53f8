"""Small tokenizers of the kinds that people share, as the folders of their owners."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXTS: Final = (
    "The quick brown fox jumps over the lazy dog. 2 + 2 = 4",
    "don't I'll we've naïve café déjà vu über 日本語 🙂",
    "def f(x):\n    return x  # a comment\n\n\tuser assistant system",
)
CHATML: Final = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED: Final = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n"
    "{% generation %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>"
    "{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    "{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>{% endgeneration %}\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHAT_TOKENS: Final = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
ALPHABET: Final = pre_tokenizers.ByteLevel.alphabet()
Config = dict[str, Any]


def trained(engine: Tokenizer, kind: Any, special: Iterable[str], **options: Any) -> Tokenizer:
    options = {"vocab_size": 420, "show_progress": False} | options
    engine.train_from_iterator(TEXTS * 3, kind(special_tokens=list(special), **options))
    return engine


def byte_level(*, prefix: bool = False, special: Iterable[str] = CHAT_TOKENS) -> Tokenizer:
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    engine.decoder = decoders.ByteLevel()
    return trained(engine, trainers.BpeTrainer, special, initial_alphabet=ALPHABET)


def chatml() -> tuple[Tokenizer, Config]:
    engine = byte_level()
    engine.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    return engine, {"eos_token": "<|im_end|>", "chat_template": CHATML}


def marked_chat() -> tuple[Tokenizer, Config]:
    return chatml()[0], {"eos_token": "<|im_end|>", "chat_template": MARKED}


def roberta() -> tuple[Tokenizer, Config]:
    engine = byte_level(prefix=True, special=["<s>", "</s>", "<mask>"])
    engine.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    engine.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    return engine, {"bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>"}


def unigram() -> tuple[Tokenizer, Config]:
    engine = Tokenizer(models.Unigram())
    engine.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    engine.decoder = decoders.Metaspace()
    trained(engine, trainers.UnigramTrainer, ["<pad>", "</s>", "<unk>"], unk_token="<unk>")
    engine.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return engine, {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def byte_fallback() -> Tokenizer:
    engine = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    engine.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    engine.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    trained(engine, trainers.BpeTrainer, ["<unk>", "<s>", "</s>", *pieces], vocab_size=500)
    definition = json.loads(engine.to_str())
    definition["added_tokens"] = definition["added_tokens"][:3]  # bytes are no added tokens
    engine = Tokenizer.from_str(json.dumps(definition))
    engine.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return engine


def llama2() -> tuple[Tokenizer, Config]:
    config = {"tokenizer_class": "LlamaTokenizer", "legacy": True, "add_bos_token": True}
    return byte_fallback(), config | {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def llama2_new() -> tuple[Tokenizer, Config]:
    engine, config = llama2()
    return engine, config | {"legacy": False, "tokenizer_class": "LlamaTokenizerFast"}


def llama3() -> tuple[Tokenizer, Config]:
    engine = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?[^\s\p{N}]+|\s+(?!\S)|\s+"), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    engine.decoder = decoders.ByteLevel()
    trained(engine, trainers.BpeTrainer, [], initial_alphabet=ALPHABET)
    engine.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>"])
    begin = ("<|begin_of_text|>", engine.token_to_id("<|begin_of_text|>"))
    engine.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[begin]),
        ]
    )
    return engine, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}


def gemma() -> tuple[Tokenizer, Config]:
    engine = byte_fallback()
    engine.normalizer = normalizers.Replace(" ", "▁")
    engine.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    engine.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("▁▁", normalized=False)])
    return engine, {"bos_token": "<s>", "eos_token": "<end_of_turn>", "unk_token": "<unk>"}


def gemma_class() -> tuple[Tokenizer, Config]:
    engine, config = gemma()
    return engine, config | {"tokenizer_class": "GemmaTokenizer"}


def llama_class_of_bytes() -> tuple[Tokenizer, Config]:
    engine, config = llama3()
    return engine, config | {"tokenizer_class": "LlamaTokenizerFast"}


def gpt2_class() -> tuple[Tokenizer, Config]:
    return byte_level(), {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}


def bert() -> tuple[Tokenizer, Config]:
    engine = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    engine.normalizer = normalizers.BertNormalizer()
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece()
    trained(engine, trainers.WordPieceTrainer, ["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    engine.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return engine, {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}


def added_by_config() -> tuple[Tokenizer, Config]:
    engine = byte_level()
    size = engine.get_vocab_size()
    flags = {"special": True, "single_word": False, "normalized": False}
    tokens = [
        {"content": "<left>", "lstrip": True, "rstrip": False},
        {"content": "<right>", "lstrip": False, "rstrip": True},
        {"content": "fox", "lstrip": False, "rstrip": False, "normalized": True},
        {"content": "word", "lstrip": False, "rstrip": False, "single_word": True},
    ]
    decoder = {str(size + number): flags | token for number, token in enumerate(tokens)}
    extra = ["<extra>", "<left>"]
    return engine, {
        "added_tokens_decoder": decoder,
        "eos_token": "<|im_end|>",
        "additional_special_tokens": extra,
    }


def nfc() -> tuple[Tokenizer, Config]:
    engine = byte_level(special=["<|endoftext|>"])
    engine.normalizer = normalizers.NFC()
    return engine, {"eos_token": "<|endoftext|>", "bos_token": None, "add_bos_token": False}


def word_level() -> tuple[Tokenizer, Config]:
    words = {"the": 0, "fox": 4, "dog": 9, "[UNK]": 20, "2": 7}  # with holes
    engine = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    return engine, {"unk_token": "[UNK]"}


KINDS: Final[tuple[Callable[[], tuple[Tokenizer, Config]], ...]] = (
    chatml,
    roberta,
    unigram,
    llama2,
    llama2_new,
    llama3,
    gemma,
    gemma_class,
    llama_class_of_bytes,
    gpt2_class,
    bert,
    added_by_config,
    nfc,
    word_level,
)


def write_owned(folder: Path, kind: Callable[[], tuple[Tokenizer, Config]]) -> Path:
    """Write the files of a tokenizer as its owner has them."""
    engine, config = kind()
    path = folder / kind.__name__
    path.mkdir()
    engine.save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def write_older(folder: Path) -> Path:
    """Write the files of a tokenizer as older versions of transformers did."""
    path = folder / "older"
    path.mkdir()
    byte_level().save(str(path / "tokenizer.json"))
    end = {"content": "<|end|>", "lstrip": False, "rstrip": False, "normalized": False}
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (path / "special_tokens_map.json").write_text(json.dumps({"eos_token": end}))
    (path / "added_tokens.json").write_text(json.dumps({"<|end|>": 420, "<more>": 421}))
    return path
