"""What a tokenizer knows of its model: bytes of tokens, reasoning, tools and the chat template."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from answer_models import END, TOOLS, WEATHER, thinker, wrapper
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import SPMStreamingDetokenizer, TokenizerWrapper
from tiny_models import CHAT_TEMPLATE, TOOL_TEMPLATE
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from mlxd.engines.errors import InvalidRequest
from mlxd.engines.tokenizer import Tokenizer

HI = [{"role": "user", "content": "Hi"}]
BYTE_LEVEL = Tokenizer(thinker())


def with_decoder(decoder, vocab: list[str], added: list[str]) -> Tokenizer:
    backend = Backend(models.Unigram([(text, 0.0) for text in vocab], unk_id=0, byte_fallback=False))
    backend.decoder = decoder
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in added])
    fast = PreTrainedTokenizerFast(tokenizer_object=backend)
    return Tokenizer(TokenizerWrapper(fast, SPMStreamingDetokenizer))


def sentencepiece(strip: bool = True) -> Tokenizer:
    strips = [decoders.Strip(" ", 1, 0)] if strip else []
    decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strips])
    vocab = ["<unk>", "▁Hello", "▁", "lo", "▁▁▁", "ö", *(f"<0x{byte:02X}>" for byte in range(256))]
    return with_decoder(decoder, vocab, ["<s>", "<|ü|>"])


@given(st.text(max_size=40))
def test_the_bytes_of_byte_level_tokens_join_to_the_text(text: str):
    tokens = BYTE_LEVEL.encode(text)
    assert b"".join(BYTE_LEVEL.token_bytes(token) for token in tokens) == text.encode("utf-8")


def test_special_and_added_tokens_have_the_bytes_that_they_are_written_with():
    tokenizer = Tokenizer(wrapper(("<¦Ünï▁x¦>", "é")))
    for text in (END, "<¦Ünï▁x¦>", "é"):
        (token,) = tokenizer.encode(text)
        assert tokenizer.token_bytes(token) == text.encode()


@pytest.mark.parametrize("strip", [True, False])
def test_the_bytes_of_sentencepiece_tokens_keep_their_space(strip: bool):
    tokenizer = sentencepiece(strip)
    texts = [tokenizer.token_bytes(token) for token in range(tokenizer.size)]
    assert texts[:6] == [b"<unk>", b" Hello", b" ", b"lo", b"   ", "ö".encode()]
    assert texts[6:262] == [bytes([byte]) for byte in range(256)]
    assert texts[262:] == [b"<s>", "<|ü|>".encode()]


def test_the_bytes_of_other_tokens_are_what_they_decode_to():
    metaspace = with_decoder(decoders.Metaspace(), ["<unk>", "▁a", "<0x41>"], [])
    assert [metaspace.token_bytes(token) for token in range(3)] == [b"<unk>", b" a", b"<0x41>"]
    wordpiece = with_decoder(decoders.WordPiece(), ["<unk>", "a", "##b"], [])
    assert wordpiece.token_bytes(1) == b"a"


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, sentencepiece()], ids=["byte-level", "sentencepiece"])
@pytest.mark.parametrize("token", [-1, 10**5, 2**31, 2**32, 2**70])
def test_an_id_that_is_no_token_has_no_bytes(tokenizer: Tokenizer, token: int):
    assert tokenizer.token_bytes(token) == b""


def test_a_model_has_tools_when_its_calls_can_be_read_and_its_template_names_them():
    assert Tokenizer(thinker()).has_tools
    assert Tokenizer(thinker()).tool_markers == ("<tool_call>", "</tool_call>")
    assert Tokenizer(wrapper(parser="mistral")).tool_markers == ("[TOOL_CALLS]", "")


@pytest.mark.parametrize(
    "unable",
    [
        wrapper(parser=None),
        wrapper(parser="json_tools", template=CHAT_TEMPLATE),
        wrapper(parser="json_tools", template=None),
        wrapper(parser="json_tools", template="{% if tools %}{{ raise_exception('no tools') }}{% endif %}"),
        wrapper(parser="json_tools", template="{% if tools %}You have tools.{% endif %}"),
    ],
    ids=["no parser", "tools ignored", "no template", "tools refused", "tools not named"],
)
def test_a_model_has_no_tools_when_its_calls_cannot_be_read_or_its_template_does_not_name_them(unable):
    tokenizer = Tokenizer(unable)
    assert not tokenizer.has_tools
    assert tokenizer.tool_markers is tokenizer.call_parser is None
    with pytest.raises(InvalidRequest) as refusal:
        tokenizer.encode_chat(HI, None, TOOLS)
    assert refusal.value.param == ("tools" if tokenizer.has_chat_template else "messages")


def test_tools_are_in_the_prompt_and_none_are_without():
    tokenizer = Tokenizer(thinker())
    with_tools, without = tokenizer.render_chat(HI, None, TOOLS), tokenizer.render_chat(HI)
    assert '"name": "get_weather"' in with_tools
    assert "weather" not in without
    assert without == tokenizer.render_chat(HI, {}, [])
    assert bytes(b"".join(map(tokenizer.token_bytes, tokenizer.encode_chat(HI, None, TOOLS)))).decode() == with_tools


def test_the_requests_tools_win_over_those_in_template_variables():
    rendered = Tokenizer(thinker()).render_chat(HI, {"tools": [{**WEATHER, "mark": 1}]}, [{**WEATHER, "mark": 2}])
    assert '"mark": 2' in rendered
    assert '"mark": 1' not in rendered


def test_a_template_that_is_code_may_know_tools():
    def knows(messages, tools=None, **_):
        return f"{tools} {messages}"

    def knows_not(messages, add_generation_prompt, enable_thinking):
        return str(messages)

    assert Tokenizer(wrapper(parser="minimax_m2", template=None, chat_template=knows)).has_tools
    assert not Tokenizer(wrapper(parser="minimax_m2", template=None, chat_template=knows_not)).has_tools


def test_reasoning_is_known_by_its_markers():
    tokenizer = Tokenizer(thinker())
    assert (tokenizer.has_reasoning, tokenizer.think_start, tokenizer.think_end) == (True, "<think>", "</think>")
    plain = Tokenizer(wrapper())
    assert (plain.has_reasoning, plain.think_start, plain.think_end) == (False, None, None)


@pytest.mark.parametrize(("variables", "state"), [({}, "reasoning"), ({"enable_thinking": False}, "normal")])
def test_an_answer_begins_in_the_thought_that_the_template_opens(variables: dict[str, bool], state: str):
    tokenizer = Tokenizer(thinker(template=TOOL_TEMPLATE))
    assert tokenizer.answer_state(tokenizer.encode_chat(HI, variables)) == state


def test_a_marker_that_is_several_tokens_opens_a_thought_too():
    tokenizer = Tokenizer(wrapper(("<|channel>", "<channel|>"), template="{{ 'x' * 50 }}<|channel>thought\n"))
    assert tokenizer.answer_state(tokenizer.encode_chat(HI)) == "reasoning"
    assert tokenizer.answer_state(tokenizer.encode("<|channel>")) == "normal"


def test_what_a_tokenizer_knows_is_the_same_on_every_thread():
    tokenizer = Tokenizer(thinker())

    def ask(_: int):
        prompt = tokenizer.encode_chat(HI, None, TOOLS)
        return tokenizer.has_tools, tokenizer.tool_markers, tokenizer.token_bytes(prompt[-1]), len(prompt)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(ask, range(64)))) == 1
