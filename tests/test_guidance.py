"""Guides: what compiles, and what is refused, in bounded time and with the reason."""

import threading
import time

import pytest
from guides import GRAMMAR, REGEX, allowed, follower, schema, tokens_of
from mlx_lm.utils import load_tokenizer

from mlxd.engines.errors import InvalidRequest
from mlxd.engines.guidance import MAX_GRAMMAR_CHARS, check_guide, guide_compiler
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import Guide


@pytest.fixture(scope="module")
def tokenizer(tiny_model) -> Tokenizer:
    return Tokenizer(load_tokenizer(tiny_model, eos_token_ids=[2]))


def chain(links: int, link) -> dict:
    """Definitions that each lead to the next."""
    last = {f"d{links}": {"type": "integer"}}
    return {
        "$ref": "#/$defs/d0",
        "$defs": {**{f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(links)}, **last},
    }


# What llguidance says of each; those without a reason are in order.
REFUSED = {
    "no JSON": (schema("{"), "EOF"),
    "a list": (schema("[]"), "object"),
    "nesting": (schema('{"items":' * 5000 + "true" + "}" * 5000), "recursion"),
    "nesting of values": (schema('{"const":' + "[" * 5000 + "]" * 5000 + "}"), "recursion"),
    "an unknown type": (schema({"type": "quux"}), "quux"),
    "no value": (schema({"enum": []}), "anyOf is empty"),
    "crossed bounds": (schema({"type": "integer", "minimum": 5, "maximum": 3}), "minimum"),
    "a forbidden key that is required": (
        schema({"type": "object", "properties": {"a": False}, "required": ["a"]}),
        "unsatisfiable",
    ),
    "a keyword that is not known": (schema({"not": {"type": "string"}}), "not"),
    "a reference to itself": (schema({"$ref": "#"}), "no answer"),
    "a loop of references": (schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), "no answer"),
    "a reference to nothing": (schema({"$ref": "#/nope"}), "nope"),
    "a reference to the network": (schema({"$ref": "http://127.0.0.1:9/x.json"}), "retriev"),
    "a reference to a file": (schema({"$ref": "file:///etc/passwd"}), "retriev"),
    "a schema of the network": (schema({"$schema": "http://127.0.0.1:9/x", "type": "object"}), "retriev"),
    "an exponential schema": (
        schema({"allOf": [{"anyOf": [{"properties": {f"a{i}": {"const": n}}} for n in (0, 1)]} for i in range(20)]}),
        "too large",
    ),
    "a divisor of millions of states": (schema({"type": "integer", "multipleOf": 3999971}), "multipleOf"),
    "divisors whose common multiple is large": (
        schema({"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}]}),
        "multipleOf",
    ),
    "many divisors": (schema({"anyOf": [{"type": "integer", "multipleOf": 997}] * 60}), "multipleOf"),
    "a divisor without end": (schema('{"type":"number","multipleOf":1e300}'), "multipleOf"),
    "a divisor hidden in a grammar": (
        Guide(GRAMMAR, r'start: %json {"type":"integer","multi\u0070leOf":4e0000000006}'),
        "multipleOf",
    ),
    "a divisor beyond all reason": (
        Guide(GRAMMAR, 'start: %json {"type":"integer","multipleOf":4e99999999999999999999999}'),
        "multipleOf",
    ),
    "a grammar that llguidance panics at": (
        Guide(GRAMMAR, 'start : sort::0\nsort::_: "a" sort::incr(_)""+'),
        "panic: assertion failed",
    ),
    "too many optional keys": (
        schema(
            {
                "type": "object",
                "properties": {f"p{i}": {"type": "integer"} for i in range(1000)},
                "additionalProperties": False,
            }
        ),
        "Current row",
    ),
    "too long": (schema({"enum": ["x" * MAX_GRAMMAR_CHARS]}), "characters"),
    "half a character": (schema('{"const":"\\ud800"}'), "hex escape"),
    "half a character in a regex": (Guide(REGEX, "\ud800"), "surrogates"),
    "a regex with look-around": (Guide(REGEX, "(?=a)b"), "look-around"),
    "a regex with a reference": (Guide(REGEX, r"(a)\1"), "backreferences"),
    "half a regex": (Guide(REGEX, "("), "unclosed"),
    "a deep regex": (Guide(REGEX, "(" * 20_000 + "a" + ")" * 20_000), "nest"),
    "a regex without any match": (Guide(REGEX, r"[^\s\S]"), "no answer"),
    "a regex that counts too far": (Guide(REGEX, "a{99999999999999999999}"), "invalid"),
    "no grammar": (Guide(GRAMMAR, "nonsense"), ""),
    "a grammar without start": (Guide(GRAMMAR, 'foo: "a"'), "start"),
    "a grammar without end": (Guide(GRAMMAR, "start: start"), "no answer"),
    "a deep grammar": (Guide(GRAMMAR, "start: " + "(" * 20_000 + '"a"' + ")" * 20_000), "nested"),
    "an exponential terminal": (
        Guide(GRAMMAR, "start: R0\n" + "\n".join(f"R{i}: R{i + 1} R{i + 1}" for i in range(40)) + '\nR40: "z"'),
        "too big",
    ),
    "an unknown special token": (Guide(GRAMMAR, "start: <|nope|>"), "unknown special token"),
    "an ambiguous grammar": (
        Guide(
            GRAMMAR,
            "start: a0\n" + "\n".join(f"a{i}: ({'(' * 20}a{i + 1}{')?' * 20})" for i in range(200)) + '\na200: "z"',
        ),
        "",
    ),
}
TAKEN = {
    "any object": schema({"type": "object"}),
    "a billion items": schema({"type": "array", "items": {"type": "integer"}, "minItems": 10**9}),
    "a billion characters": schema({"type": "string", "minLength": 10**9}),
    "a schema within itself": schema(
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}
    ),
    "doubled references": schema(chain(60, lambda ref: {"anyOf": [ref, ref]})),
    "a regex that backtracks": Guide(REGEX, "(a+)+b"),
    "a regex of many states": Guide(REGEX, "(a|b)*a(a|b){1000}"),
    "a regex of a long constant": Guide(REGEX, "a{1000000}"),
    "ambiguity": Guide(GRAMMAR, 'start: s\ns: s s | "a"'),
    "everyday divisors": schema(
        {"items": {"anyOf": [{"type": "number", "multipleOf": n} for n in (0.01, 0.05, 5, 60)]}}
    ),
    "descriptions": schema({"type": "integer", "description": "x" * MAX_GRAMMAR_CHARS}),
}
CHAINS = {
    "references": schema(chain(1500, lambda ref: ref)),
    "items": schema(chain(1300, lambda ref: {"items": ref})),
    "properties": schema(chain(1000, lambda ref: {"properties": {"a": ref}})),
    "allOf": schema(chain(1300, lambda ref: {"allOf": [ref]})),
    "anyOf": schema(chain(900, lambda ref: {"anyOf": [ref, {"type": "null"}]})),
    "rules": Guide(GRAMMAR, "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(5000)) + '\nr5000: "z"'),
    "terminals": Guide(GRAMMAR, "start: R0\n" + "\n".join(f'R{i}: R{i + 1} "a"' for i in range(3500)) + '\nR3500: "z"'),
    "options": Guide(
        GRAMMAR,
        "start: r0\n" + "\n".join(f"r{i}: {'(' * 20}r{i + 1}{')?' * 20}" for i in range(800)) + '\nr800: "z"',
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_guide_that_cannot_be_followed_is_refused_with_the_reason(tokenizer, name):
    guide, reason = REFUSED[name]
    with pytest.raises(InvalidRequest) as refusal:
        check_guide(tokenizer, guide)
    message = str(refusal.value)
    assert reason in message
    assert 0 < len(message) < 500
    assert "\n" not in message


def test_a_guide_whose_tokens_take_long_to_find_is_refused(tokenizer, monkeypatch):
    monkeypatch.setattr("mlxd.engines.guidance.TRIAL_SECONDS", 0.0)
    with pytest.raises(InvalidRequest, match="less ambiguous"):
        check_guide(tokenizer, Guide(GRAMMAR, 'start: s\ns: s s | "b"'))


@pytest.mark.parametrize("name", TAKEN)
def test_a_guide_that_asks_for_much_costs_little_until_the_model_writes_it(tokenizer, name):
    started = time.thread_time()
    check_guide(tokenizer, TAKEN[name])
    guided = follower(tokenizer, TAKEN[name])
    assert allowed(guided, [])
    assert time.thread_time() - started < 1


@pytest.mark.parametrize("name", CHAINS)
def test_the_deepest_chains_that_fit_into_a_guide_do_not_overflow_the_stack(tokenizer, name):
    guide = CHAINS[name]
    outcome, go = [], threading.Event()

    def compile_and_use():
        go.wait()
        try:
            check_guide(tokenizer, guide)
            outcome.append(allowed(follower(tokenizer, guide), []))
        except InvalidRequest as error:
            outcome.append(str(error))

    usual = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=compile_and_use)
        thread.start()
    finally:
        threading.stack_size(usual)
    go.set()
    thread.join()
    assert outcome
    assert threading.stack_size() == usual


def test_a_tokenizer_without_a_fast_form_cannot_guide(tiny_model):
    class Slow:
        _tokenizer = object()
        eos_token_ids = (2,)
        response_transitions = None

    with pytest.raises(InvalidRequest, match="fast tokenizer"):
        check_guide(Tokenizer(Slow()), schema({}))


def test_a_model_without_an_end_token_cannot_guide(tiny_model):
    wrapper = load_tokenizer(tiny_model)
    wrapper.eos_token_ids = [10**6]
    with pytest.raises(InvalidRequest, match="end token"):
        check_guide(Tokenizer(wrapper), schema({}))


def test_a_model_with_an_answer_format_of_its_own_cannot_be_guided(tiny_model):
    wrapper = load_tokenizer(tiny_model)
    wrapper._response_format = {"transitions": {"header": [("to=user", "normal")]}, "initial_state": "header"}
    with pytest.raises(InvalidRequest, match="format of their own"):
        check_guide(Tokenizer(wrapper), schema({}))


def test_guides_are_compiled_once_and_at_the_same_time_on_several_threads(tiny_model):
    tokenizer = Tokenizer(load_tokenizer(tiny_model))
    results = []

    def work(number: int) -> None:
        guide = schema({"const": f"value {number % 3}"})
        check_guide(tokenizer, guide)
        results.append(allowed(follower(tokenizer, guide), tokens_of(tokenizer, '"value')))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 9
    assert all(results)
    assert len(guide_compiler(tokenizer)._kept) == 3


def test_few_compiled_guides_are_kept(tokenizer):
    for number in range(60):
        check_guide(tokenizer, schema({"const": number}))
    assert len(guide_compiler(tokenizer)._kept) <= 32
    for number in range(10):
        check_guide(tokenizer, schema({"const": str(number) * 60_000}))
    assert sum(len(guide.text) for guide in guide_compiler(tokenizer)._kept) <= 4 * MAX_GRAMMAR_CHARS
