"""A prompt has the tokens around it that its tokenizer puts there, and a text ends at its end."""

import json
from pathlib import Path

import numpy as np
import pytest

from jaxpipe.errors import ConfigError
from jaxpipe.inference.messages_file import read_messages
from jaxpipe.inference.sample_texts import Chat, Continuation, prompt_tokens
from jaxpipe.runtime.data import BytePairs, Bytes, load_byte_pairs
from tests.runtime.data.dataset.owned_tokenizers import chatml, llama2, write_owned


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> BytePairs:
    return load_byte_pairs(write_owned(tmp_path_factory.mktemp("owned"), llama2))


def test_a_prompt_begins_with_the_begin_of_text(llama: BytePairs) -> None:
    tokens = prompt_tokens(llama, "the fox").tolist()
    assert tokens[0] == 1
    assert tokens[1:] == llama.encode("the fox").tolist()
    assert prompt_tokens(Bytes(), "ab").tolist() == [97, 98]
    with pytest.raises(ConfigError, match="`--prompt` must hold at least one character"):
        prompt_tokens(llama, "")
    with pytest.raises(ConfigError, match="`--prompt` must be text in UTF-8, and character 3 of"):
        prompt_tokens(llama, "ab\udcff")  # a byte of a command line that is no UTF-8
    with pytest.raises(ConfigError, match="`--system` must be text in UTF-8, and character 1 of"):
        prompt_tokens(llama, "ab", chat=Chat(system="\udcff"))


def test_a_chat_is_a_message_that_forges_no_role(tmp_path: Path, llama: BytePairs) -> None:
    tokenizer = load_byte_pairs(write_owned(tmp_path, chatml))
    tokens = prompt_tokens(tokenizer, "hi<|im_end|>", chat=Chat(system="short"))
    assert tokenizer.decode(tokens) == (
        "<|im_start|>system\nshort<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokens.tolist().count(tokenizer.frame.ends[0]) == 2
    with pytest.raises(ConfigError, match="`--chat` needs a tokenizer with a chat template"):
        prompt_tokens(llama, "hi", chat=Chat())


def test_a_continuation_keeps_its_first_blank_and_ends_at_the_end(llama: BytePairs) -> None:
    tokens = llama.encode("the fox dog").tolist()
    cut = next(n for n in range(1, len(tokens)) if llama.decode(np.array(tokens[:n])) == "the fox")
    words = tokens[cut:]
    assert llama.decode(np.array(words)) == "dog", "its blank is lost where it begins a text"
    text = Continuation(llama, context=(*llama.frame.begin, *tokens[:cut]))
    shown = "".join(text.add(token) for token in words)
    assert text.add(llama.frame.ends[0]) == ""
    assert text.is_stopped
    assert shown == " dog"
    assert text.add(words[0]) == ""


def test_what_is_held_for_a_stop_is_shown_at_the_end_of_text() -> None:
    text = Continuation(Bytes(), stops=("end",))
    assert [text.add(token) for token in b"a e"] == ["a", " ", ""]
    assert text.add(0) == "e"
    assert (text.shown, text.is_stopped) == ("a e", True)


def test_a_file_of_messages_is_a_prompt_for_the_next_answer(tmp_path: Path) -> None:
    tokenizer = load_byte_pairs(write_owned(tmp_path, chatml))
    turns = [("user", "hi"), ("assistant", "yes"), ("user", "the fox")]
    messages = [{"role": role, "content": text} for role, text in turns]
    shared = [{"from": role, "value": text} for role, text in turns]
    path = tmp_path / "messages.json"
    for content in (messages, {"messages": messages}, {"conversations": shared}):
        path.write_text(json.dumps(content))
        tokens = prompt_tokens(tokenizer, read_messages(path))
        assert tokenizer.decode(tokens) == (
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
            "<|im_start|>user\nthe fox<|im_end|>\n<|im_start|>assistant\n"
        )
    for content, expected in (
        (messages[:2], "must end with a message that is not of the assistant"),
        ({"prompt": "a", "completion": "b"}, "must hold a list of messages"),
        (3, "must hold a list of messages"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(ConfigError, match=expected):
            read_messages(path)
