"""Which tokens a row may take: along its guide, back again, around reasoning, and at the end."""

import mlx.core as mx
import numpy as np
import pytest
from answer_models import thinker
from guides import PERSON, REGEX, allowed, follower, schema, tokens_of
from mlx_lm.utils import load_tokenizer

from mlxd.engines.errors import GuideError
from mlxd.engines.guide_follower import Reasoning
from mlxd.engines.guide_processor import GuideProcessor, row_guide
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import Guide


@pytest.fixture(scope="module")
def tokenizer(tiny_model) -> Tokenizer:
    return Tokenizer(load_tokenizer(tiny_model, eos_token_ids=[2]))


@pytest.fixture(scope="module")
def two_ends(tiny_model) -> Tokenizer:
    """A tokenizer whose model ends with either of two tokens."""
    return Tokenizer(load_tokenizer(tiny_model, eos_token_ids=[0, 2]))


def test_a_complete_answer_can_only_end_and_with_any_end_token(two_ends):
    guided = follower(two_ends, schema({"const": "yes"}))
    tokens = tokens_of(two_ends, '"yes"')
    assert allowed(guided, tokens) == {0, 2}
    for end in (0, 2):
        assert allowed(follower(two_ends, schema({"const": "yes"})), [*tokens, end]) == {0, 2}


def test_an_answer_that_may_end_or_go_on_may_do_both(two_ends):
    guided = follower(two_ends, Guide(REGEX, "a*"))
    (letter,) = tokens_of(two_ends, "a")
    assert allowed(guided, [letter]) >= {0, 2, letter}


def test_an_unfinished_answer_cannot_end(two_ends):
    guided = follower(two_ends, schema({"const": "yes"}))
    assert not allowed(guided, tokens_of(two_ends, '"y')) & {0, 2}


def test_json_is_written_without_white_space(tokenizer):
    guided = follower(tokenizer, schema({"type": "object"}))
    assert {two.encode() for two in ("{",)} == {tokenizer.token_bytes(token)[:1] for token in allowed(guided, [])}


def test_tokens_that_a_guide_does_not_allow_are_an_error_and_say_which(tokenizer):
    guided = follower(tokenizer, schema({"const": "yes"}))
    (letter,) = tokens_of(tokenizer, "a")
    with pytest.raises(GuideError, match=f"token {letter} is not allowed after 0 tokens"):
        guided.follow([letter])


@pytest.mark.parametrize("keep", [0, 1, 3, 8])
def test_a_row_that_goes_back_is_where_it_was(tokenizer, keep):
    guide = schema(PERSON)
    tokens = tokens_of(tokenizer, '{"name":"Ann","age":30,"mood":null,"home":{"street":"x","number":1},"scores":[1]}')
    guided, fresh = follower(tokenizer, guide), follower(tokenizer, guide)
    assert allowed(guided, tokens) == {2}
    assert allowed(guided, tokens[:keep]) == allowed(fresh, tokens[:keep])


def test_a_row_that_takes_other_tokens_after_going_back_follows_those(tokenizer):
    guide = schema({"enum": ["left", "right", "up"]})
    left, right = (tokens_of(tokenizer, text) for text in ('"left"', '"right"'))
    guided = follower(tokenizer, guide)
    assert allowed(guided, left) == {2}
    assert allowed(guided, [*left, 2]) == {2}
    assert allowed(guided, right) == {2}
    assert allowed(guided, right[:-1]) == allowed(follower(tokenizer, guide), right[:-1])
    with pytest.raises(GuideError):
        guided.follow([*right, right[0]])


START = (1000, 1001)


def thinking(tokenizer: Tokenizer, **options) -> Reasoning:
    return Reasoning(START, b"</think>", tokenizer.token_bytes, **options)


def test_a_model_may_think_first_or_answer_at_once(tokenizer):
    guide = schema({"const": "yes"})
    guided, plain = follower(tokenizer, guide, thinking(tokenizer)), follower(tokenizer, guide)
    first, answer = allowed(plain, []), tokens_of(tokenizer, '"yes"')
    end = tokens_of(tokenizer, "</think>")
    assert len(end) > 1
    anything = set(range(2048)) - {2}
    assert allowed(guided, []) == {*first, START[0]}
    assert allowed(guided, [START[0]]) == {START[1]}
    assert allowed(guided, [*START]) == anything
    assert allowed(guided, [*START, 5, 6, *end[:-1]]) == anything
    assert allowed(guided, [*START, 5, 6, *end]) == first
    assert allowed(guided, [*START, 5, 6, *end, *answer]) == {2}
    # and back again, to each of these places
    assert allowed(guided, [*START, 5, 6, *end[:-1]]) == anything
    assert allowed(guided, [*START, 7, *end, *answer]) == {2}
    assert allowed(guided, [*START, 7, *end, *answer[:1]]) == allowed(follower(tokenizer, guide), answer[:1])
    assert allowed(guided, [START[0]]) == {START[1]}
    assert allowed(guided, answer) == {2}


def test_reasoning_that_the_prompt_left_open_goes_on_until_its_end(tokenizer):
    guide = schema({"const": "yes"})
    guided = follower(tokenizer, guide, thinking(tokenizer, is_open=True))
    for length in range(4):
        assert allowed(guided, [9] * length) == set(range(2048)) - {2}
    end = tokens_of(tokenizer, "so</think>")
    assert allowed(guided, [9, 9, 9, *end]) == allowed(follower(tokenizer, guide), [])


@pytest.mark.parametrize(
    ("prompt", "thinks"),
    [
        ("<|im_start|>assistant\n", None),
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("a user's <think> or </think><|im_start|>assistant\n", None),
    ],
)
def test_the_end_of_the_prompt_says_whether_the_model_thinks_first(prompt, thinks):
    thinking_tokenizer = Tokenizer(thinker())
    guide = schema({"const": "yes"})
    tokens = thinking_tokenizer.encode(prompt)
    (start,) = thinking_tokenizer.encode("<think>")
    process = row_guide(guide, thinking_tokenizer, tokens, reasons=True)
    logits = process(mx.array(tokens), mx.zeros((1, thinking_tokenizer.size)))
    kept = set(np.flatnonzero(np.array(logits)[0] == 0).tolist())
    answers = allowed(follower(thinking_tokenizer, guide), [])
    everything = set(range(thinking_tokenizer.size)) - thinking_tokenizer.end_tokens
    assert kept == {None: {*answers, start}, True: everything, False: answers}[thinks]
    plain = row_guide(guide, thinking_tokenizer, tokens, reasons=False)(mx.array(tokens), mx.zeros((1, 300)))
    assert set(np.flatnonzero(np.array(plain)[0] == 0).tolist()) == answers


def processor(tokenizer: Tokenizer, guide: Guide, prompt=(5, 6, 7)) -> GuideProcessor:
    return row_guide(guide, tokenizer, prompt, reasons=False)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_ids_beyond_the_tokenizers_are_never_allowed(tokenizer, dtype):
    process = processor(tokenizer, schema({"const": "yes"}))
    logits = mx.zeros((1, 2100), dtype=dtype)
    for generated in ([], tokens_of(tokenizer, '"yes"')):
        masked = process(mx.array([5, 6, 7, *generated]), logits)
        assert masked.dtype == dtype
        assert masked.shape == (1, 2100)
        kept = np.flatnonzero(np.array(masked.astype(mx.float32))[0] == 0)
        assert set(kept.tolist()) == allowed(follower(tokenizer, schema({"const": "yes"})), generated)


def test_a_model_with_fewer_ids_than_its_tokenizer_is_masked_too(tokenizer):
    masked = processor(tokenizer, schema({"const": "yes"}))(mx.array([5, 6, 7]), mx.zeros((1, 600)))
    assert np.isinf(np.array(masked)).sum() > 500


def test_a_guide_that_takes_too_long_fails_its_row(tokenizer, monkeypatch):
    monkeypatch.setattr("mlxd.engines.guide_processor.FREE_SECONDS", -1.0)
    with pytest.raises(GuideError, match="too long"):
        processor(tokenizer, schema({"const": "yes"}))(mx.array([5, 6, 7]), mx.zeros((1, 2048)))
