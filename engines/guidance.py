"""Guides: forms that answers must have, compiled by llguidance. What is here touches no MLX array.

A guide is a client's program. Before llguidance sees it its size is bounded, and it is compiled within llguidance's
own limits, on a thread whose stack is deep enough for any text of that size: llguidance recurses over chains of
references and rules, and an overflow would end the process.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from decimal import Decimal
from time import thread_time
from typing import TYPE_CHECKING, Any, TypeVar

from mlxd.engines.errors import InvalidRequest
from mlxd.engines.imported_later import later
from mlxd.engines.tokenizer import GuideKeeper, Tokenizer
from mlxd.engines.types import Guide, GuideKind

if TYPE_CHECKING:
    import llguidance
    import numpy as np
else:
    llguidance = later("llguidance")
    np = later("numpy")

# Characters of a grammar, which has no descriptions any more, and of a guide as it comes. The deepest chains that
# were found need 1 KB of stack for each character, and the slowest grammars a time that grows with the square.
MAX_GRAMMAR_CHARS = 64 * 1024
MAX_GUIDE_CHARS = 256 * 1024
COMPILER_STACK_BYTES = 256 * 2**20

# States of all `multipleOf` numbers together; each holds hundreds of bytes for as long as the guide is kept.
MAX_DIVISOR_STATES = 25_000

# Compiled guides that are kept for one tokenizer: how many, and how long their texts are together.
MAX_KEPT = 32
MAX_KEPT_CHARS = 4 * MAX_GRAMMAR_CHARS

# Tokens of a trial answer: some guides compile and are refused only once a few tokens were taken.
TRIAL_TOKENS = 24
# CPU seconds of the trials together; usual guides take milliseconds.
TRIAL_SECONDS = 1.0

# Characters of a reason, which may quote all of the guide.
_LONGEST_REASON = 400
_LONG_QUOTE = re.compile(r"\S{80,}")
# Without it every step would tokenize all of a long constant that follows.
_LET_THE_MODEL_TOKENIZE = '\n%llguidance {"no_forcing": true}\n'
_SOURCE_LINE = re.compile(r"^\s*\d+ \| |^\s*\^+\s*$")
_PLACE = re.compile(r"^(at )?\d+\(\d+\): ")
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_MULTIPLE_OF = re.compile(r'"multipleOf"\s*:\s*(-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)')
_STACK_SIZE = threading.Lock()
# Keywords of JSON Schema: texts for people, and values that are data.
_DESCRIPTIONS = frozenset({"title", "description", "$comment"})
_VALUES = frozenset({"const", "enum", "default", "examples"})

T = TypeVar("T")


class GuideCompiler:
    """Compiles guides for one tokenizer, on any thread, and keeps the last ones."""

    def __init__(self, wrapper: Any) -> None:
        fast = getattr(wrapper._tokenizer, "backend_tokenizer", None)  # noqa: SLF001 - mlx-lm has no public name
        if fast is None:
            raise InvalidRequest("this model has no fast tokenizer, so its answers cannot be given a form")
        if wrapper.response_transitions:
            raise InvalidRequest("this model's answers have a format of their own, so they cannot be given another")
        self.end_tokens = frozenset(wrapper.eos_token_ids)
        self._tokenizer = _build_tokenizer(fast, sorted(self.end_tokens))
        self._limits = llguidance.LLParserLimits(
            max_items_in_row=1000,
            initial_lexer_fuel=300_000,
            step_lexer_fuel=100_000,
            step_max_items=10_000,
            max_lexer_states=50_000,
            max_grammar_size=50_000,
            verbose_errors=False,
        )
        self._lock = threading.Lock()
        self._kept: OrderedDict[Guide, llguidance.LLMatcher] = OrderedDict()

    @property
    def vocab_size(self) -> int:
        """How many token ids a mask has."""
        return int(self._tokenizer.vocab_size)

    def matcher(self, guide: Guide) -> llguidance.LLMatcher:
        """A matcher at the start of an answer, for one row. Raises InvalidRequest."""
        if guide.compiled is not None:
            own: llguidance.LLMatcher = guide.compiled.deep_copy()
            return own
        with self._lock:
            kept = self._kept.get(guide)
            if kept is not None:
                self._kept.move_to_end(guide)
                return kept.deep_copy()
        compiled = _on_a_deep_stack(lambda: self._compile(guide))
        with self._lock:
            self._kept[guide] = compiled
            while len(self._kept) > MAX_KEPT or sum(len(each.text) for each in self._kept) > MAX_KEPT_CHARS:
                self._kept.popitem(last=False)
            return compiled.deep_copy()

    def _compile(self, guide: Guide) -> llguidance.LLMatcher:
        _check_length(guide.text, MAX_GUIDE_CHARS)
        grammar = _grammar(guide)
        _check_length(grammar, MAX_GRAMMAR_CHARS)
        _check_divisors(grammar)
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        _raise_error(matcher)
        _try_out(matcher, self.end_tokens)
        return matcher


def check_guide(tokenizer: Tokenizer, guide: Guide) -> Guide:
    """The guide with what it compiles to, for the rows that need it. Seconds at worst, so not for an event loop.

    Raises InvalidRequest with the reason when it cannot be compiled, is too big or can have no answer, or when the
    model's tokenizer has no fast form or no end token.
    """
    if isinstance(tokenizer, GuideKeeper):
        return tokenizer.check_guide(guide)
    return replace(guide, compiled=guide_compiler(tokenizer).matcher(guide))


def guide_compiler(tokenizer: Tokenizer) -> GuideCompiler:
    """The compiler of a tokenizer; made (about a second) by the first caller. Raises InvalidRequest."""
    return tokenizer.once(GuideCompiler, GuideCompiler)


def _build_tokenizer(fast: Any, end_tokens: Sequence[int]) -> llguidance.LLTokenizer:
    known = [token for token in end_tokens if token < fast.get_vocab_size(with_added_tokens=True)]
    if not known:
        raise InvalidRequest("this model has no end token, so an answer of a given form could not end")
    # On a copy of one's own: padding and truncation are no part of the vocabulary.
    plain = type(fast).from_str(fast.to_str())
    plain.no_padding()
    plain.no_truncation()
    try:
        return llguidance.LLTokenizer(plain.to_str(), eos_token=known)
    except ValueError as error:
        raise InvalidRequest(f"llguidance cannot read this model's tokenizer: {plain_reason(error)}") from error


def _grammar(guide: Guide) -> str:
    """The guide in llguidance's Lark. Raises InvalidRequest."""
    try:
        guide.text.encode()
        match guide.kind:
            case GuideKind.JSON_SCHEMA:
                return f"start: %json {json_schema(guide.text)}" + _LET_THE_MODEL_TOKENIZE
            case GuideKind.REGEX:
                return f"start: {regex_rule(guide.text)}" + _LET_THE_MODEL_TOKENIZE
            case GuideKind.GRAMMAR:
                return guide.text + _LET_THE_MODEL_TOKENIZE
    except ValueError as error:  # a lone surrogate, or JSON that cannot be read
        raise InvalidRequest(plain_reason(error)) from error


def regex_rule(text: str) -> str:
    """A regular expression as the right side of a rule. Raises ValueError."""
    (grammar,) = json.loads(llguidance.LLMatcher.grammar_from_regex(text))["grammars"]
    return str(grammar["lark_grammar"]).removeprefix("start:").strip()


def json_schema(text: str, item_separator: str = ",", key_separator: str = ":") -> str:
    """A schema for `%json` whose JSON has no white space but in its separators. Raises ValueError.

    White space that is free would let a model write it without end.
    """
    compact = llguidance.LLMatcher.grammar_from_json_schema(
        text,
        defaults={
            "whitespace_flexible": False,
            "item_separator": item_separator,
            "key_separator": key_separator,
        },
    )
    (grammar,) = json.loads(compact)["grammars"]
    return json.dumps(_without_descriptions(grammar["json_schema"]), ensure_ascii=False, separators=(",", ":"))


def _without_descriptions(schema: Any) -> Any:
    """The schema without texts that say nothing of an answer's form. A property may have the name of a keyword."""
    if isinstance(schema, list):
        return [_without_descriptions(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in _VALUES else _without_descriptions(value)
        for key, value in schema.items()
        if not (key in _DESCRIPTIONS and isinstance(value, str))
    }


def _check_divisors(grammar: str) -> None:
    """Refuse `multipleOf` numbers that take long: each has as many states as its digits make a number, `allOf` of
    two has their least common multiple, and llguidance's limits do not count them.
    """
    numbers = _MULTIPLE_OF.findall(_ESCAPE.sub(lambda match: chr(int(match[1], 16)), grammar))
    try:
        states = _divisor_states([abs(Decimal(number)) for number in numbers])
    except ArithmeticError:  # an exponent beyond all reason
        states = MAX_DIVISOR_STATES + 1
    if states > MAX_DIVISOR_STATES:
        raise InvalidRequest("its multipleOf numbers are too fine or too large to be kept to; leave them out")


def _divisor_states(divisors: Sequence[Decimal]) -> int:
    """States of all divisors together; just above MAX_DIVISOR_STATES for more than that."""
    smallest = min((int(divisor.as_tuple().exponent) for divisor in divisors), default=0)
    states = 1
    for divisor in divisors:
        # a number out of reach is no reason to compute with it
        whole = min(divisor.scaleb(-min(0, smallest)), Decimal(MAX_DIVISOR_STATES + 1))
        states = min(math.lcm(states, int(whole) or 1), MAX_DIVISOR_STATES + 1)
    return states * len(divisors)


def _check_length(text: str, most: int) -> None:
    if len(text) > most:
        raise InvalidRequest(f"it is {len(text)} characters long; at most {most} are taken")


def _try_out(matcher: llguidance.LLMatcher, end_tokens: frozenset[int]) -> None:
    """Follow a guide for a few tokens, in two ways. Raises InvalidRequest where it breaks."""
    pick, started = np.random.default_rng(0), thread_time()
    # low ids are short texts: a bracket alone leaves everything open
    _follow(matcher.deep_copy(), end_tokens, min)
    _follow(matcher.deep_copy(), end_tokens, pick.choice)
    if thread_time() - started > TRIAL_SECONDS:
        raise InvalidRequest("it takes too long to find the tokens that it allows; make it less ambiguous")


def _follow(matcher: llguidance.LLMatcher, end_tokens: frozenset[int], choose: Callable[[Any], Any]) -> None:
    for _ in range(TRIAL_TOKENS):
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        _raise_error(matcher)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        if not len(allowed):
            raise InvalidRequest("no token of this model can go on with it")
        goes_on = [token for token in allowed.tolist() if token not in end_tokens]
        if not goes_on:
            return
        matcher.try_consume_tokens([int(choose(goes_on))])
        _raise_error(matcher)


def _raise_error(matcher: llguidance.LLMatcher) -> None:
    if matcher.is_error():
        reason = plain_reason(matcher.get_error())
        raise InvalidRequest("it can have no answer" if reason.startswith("NoExtension") else reason)


def plain_reason(error: object) -> str:
    """llguidance's words on one line, without the source text that they quote."""
    words, _, _ = str(error).partition("<backtrace>")
    lines = [line.strip() for line in words.splitlines() if not _SOURCE_LINE.search(line)]
    text = " ".join(" ".join(lines).replace("<non-verbose/>", "").split())
    text = _PLACE.sub("", text).removeprefix("failed to compile JSON schema: ")
    text = _LONG_QUOTE.sub("…", text)
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + "…"


def _on_a_deep_stack(work: Callable[[], T]) -> T:
    """The result of `work`, run on a thread with a stack of COMPILER_STACK_BYTES. Raises what it raises."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - handed over whole
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="guide-compiler", daemon=True)
    # The size holds for every thread that starts meanwhile; the stack of one that needs less costs no memory.
    with _STACK_SIZE:
        usual = threading.stack_size(COMPILER_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    try:
        return outcome.result()
    except Exception:
        raise
    except BaseException as error:
        if outcome.done() and outcome.exception() is error:  # a panic of llguidance, which is no Exception
            raise InvalidRequest(f"llguidance failed on it: {plain_reason(error)}") from error
        raise
