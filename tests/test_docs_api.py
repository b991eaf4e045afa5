"""docs/api.md says what the API takes and answers: its tables and examples are compared with it."""

import inspect
import json
import re

import aiohttp
import pytest
from api_calls import ask, hello
from api_fakes import last, listening, serving
from doc_pages import SOURCES, blocks, claims, page, rows, takes, words
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams

from mlxd.daemon.api.errors import TABLE, describe
from mlxd.daemon.api.model_object import model_object
from mlxd.daemon.api.openai import fields
from mlxd.daemon.api.openai.bodies import ChatBody, CompletionBody, GenerationBody
from mlxd.daemon.api.openai.parsing import parse_chat, parse_completion
from mlxd.daemon.api.running import Phase, RequestView
from mlxd.daemon.app import Daemon
from mlxd.daemon.settings import ModelSettings, ModelsSettings, Settings
from mlxd.engines.errors import LoadFailure
from mlxd.engines.guidance import MAX_GRAMMAR_CHARS, MAX_GUIDE_CHARS
from mlxd.engines.types import EngineStats, RequestState
from mlxd.memory.probe import SystemProbe
from mlxd.registry.errors import Failure
from mlxd.registry.snapshot import ModelSnapshot
from mlxd.registry.spec import ModelKind, ModelSpec
from mlxd.registry.states import State

TEXT = page("api")
READERS = {
    "chat": (parse_chat, ChatBody, hello()),
    "completions": (parse_completion, CompletionBody, {"model": "m", "prompt": "hello"}),
}
PLACES = {"both": ("chat", "completions"), "chat": ("chat",), "completions": ("completions",)}
SERVED = {"Both calls": "both", "Chat only": "chat", "Completions only": "completions"}
TOOL = {"type": "function", "function": {"name": "f"}}
# a value beside the default for each parameter to which 1 does not mean anything else
ANOTHER = {
    "model": "other",
    "stream": True,
    "stream_options": {"include_usage": True},
    "stop": "x",
    "prompt": "bye",
    "messages": [{"role": "user", "content": "bye"}],
    "logit_bias": {"1": 1},
    "chat_template_kwargs": {"a": 1},
    "n": 2,
    "ignore_eos": True,
    "xtc_threshold": 0.2,
    "response_format": {"type": "json_object"},
    "guided_json": {},
    "guided_regex": "x",
    "guided_grammar": "start: /x/",
    "guided_choice": ["x"],
    "structured_outputs": {"json_object": True},
    "reasoning_effort": "low",
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "echo": True,
}
# what a parameter needs beside it
COMPANIONS = {
    ("chat", "top_logprobs"): {"logprobs": True},
    ("chat", "tool_choice"): {"tools": [TOOL]},
    ("chat", "continue_final_message"): {"messages": [{"role": "assistant", "content": "I say"}]},
}


def parameters():
    """Each call with a parameter that it serves and what that takes."""
    for heading, place in SERVED.items():
        for name, kind, _ in rows(TEXT, heading):
            yield from ((call, words(name)[0], kind) for call in PLACES[place])


def passed_over():
    """Each call with a parameter that it accepts without effect."""
    for name, place, kind in rows(TEXT, "Accepted without effect"):
        yield from ((call, words(name)[0], kind) for call in PLACES[place])


@pytest.mark.parametrize("call", READERS)
def test_every_parameter_is_in_one_table(call):
    named = [name for at, name, _ in (*parameters(), *passed_over()) if at == call]
    assert sorted(named) == sorted(READERS[call][1].__struct_fields__)
    shared = [words(name)[0] for name, *_ in rows(TEXT, "Both calls")]
    assert set(shared) <= set(GenerationBody.__struct_fields__)


@pytest.mark.parametrize(
    ("sent", "table"),
    [(ChatParams, fields.CHAT), (CompletionParams, fields.COMPLETIONS)],
    ids=["chat", "completions"],
)
def test_everything_that_the_openai_client_can_send_is_known(sent, table):
    assert set(sent.__annotations__) - set(table.known) - set(table.refused) == set()


def test_what_the_document_says_is_without_effect_is_named_in_the_answers_head():
    for call, table in (("chat", fields.CHAT), ("completions", fields.COMPLETIONS)):
        documented = {name for at, name, _ in passed_over() if at == call}
        assert documented == table.ignored | (documented & {"add_generation_prompt"})


@pytest.mark.parametrize(("call", "name", "kind"), [*parameters(), *passed_over()])
def test_a_parameter_takes_what_the_document_says(call, name, kind):
    parse, _, body = READERS[call]
    body = {**body, **COMPANIONS.get((call, name), {})}
    good, bad = claims(kind)
    assert bad
    assert [value for value in good if not takes(parse, {**body, name: value})] == []
    assert [value for value in bad if takes(parse, {**body, name: value})] == []


@pytest.mark.parametrize(("call", "name", "kind"), [*parameters()])
def test_a_parameter_that_is_served_has_an_effect(call, name, kind):
    parse, _, body = READERS[call]
    body = {**body, **COMPANIONS.get((call, name), {})}
    another = True if kind == "boolean" else 1
    assert parse({**body, name: ANOTHER.get(name, another)}) != parse(body)


@pytest.mark.parametrize(("call", "name", "kind"), [*passed_over()])
def test_a_parameter_without_effect_has_none(call, name, kind):
    parse, _, body = READERS[call]
    values = claims(kind)[0] or [False]
    assert [value for value in values if parse({**body, name: value}) != parse(body)] == []


def test_refused_parameters_are_those_of_the_document():
    documented = {"chat": {}, "completions": {}}
    for name, place, harmless in rows(TEXT, "Refused"):
        for call in PLACES[place]:
            documented[call][words(name)[0]] = [json.loads(value) for value in words(harmless)]
    for call, known in (("chat", fields.CHAT.refused), ("completions", fields.COMPLETIONS.refused)):
        # as text, because True equals 1
        assert repr(documented[call].items()) == repr({name: list(known[name]) for name in documented[call]}.items())
        assert documented[call].keys() == known.keys()


def test_the_largest_form_is_in_the_document():
    said = TEXT.partition("A request has one form at most")[2].partition(".")[0]
    assert [int(number) for number in re.findall(r"\d+", said)] == [MAX_GUIDE_CHARS, MAX_GRAMMAR_CHARS]


SAMPLES = {
    "str": "x",
    "int": 1,
    "float": 2.0,
    "tuple[str, ...]": ("x",),
    "LoadFailure": LoadFailure.STALLED,
    "Failure": Failure("stalled", "no bytes", 1, 2.0),
}


def sample(kind):
    """An exception of this kind, made from samples of what it needs."""
    _self, *needed = inspect.signature(kind.__init__).parameters.values()
    needed = [each for each in needed if each.kind is each.POSITIONAL_OR_KEYWORD and each.default is each.empty]
    return kind(*(SAMPLES[each.annotation] for each in needed))


def test_the_document_has_every_error_as_it_is_answered():
    documented = {words(code)[0]: cells for code, *cells in rows(TEXT, "Errors")}
    answers = [describe(sample(kind), "req-1") for kind in TABLE]
    assert documented.keys() == {answer.code for answer in answers}
    for answer in answers:
        status, kind, when, details, retry = documented[answer.code]
        assert (status, words(kind)) == (str(answer.status), [answer.type]), answer.code
        assert set(answer.details or ()) <= set(words(details)), answer.code
        assert ("Retry-After" in answer.headers) == (retry == "yes"), answer.code
        assert ("x-should-retry" in answer.headers) == ("x-should-retry" in when), answer.code
    for code, (*_, details, _) in documented.items():
        given = [set(answer.details or ()) for answer in answers if answer.code == code]
        assert set().union(*given) == set(words(details)), code


def test_an_error_that_is_never_sent_is_marked_so():
    unsent = {words(code)[0] for code, *_, when, _, _ in rows(TEXT, "Errors") if "Not sent" in when}
    made = set(re.findall(r"(?<!class )\b([A-Z]\w+)\(", "\n".join(SOURCES.values())))
    sent = {row.code for kind, row in TABLE.items() if kind.__name__ in made}
    assert unsent == {row.code for row in TABLE.values()} - sent


class Checked:
    """A daemon's own application, asked for what the examples show."""

    def __init__(self, session):
        self._session = session

    async def answer(self, method, path):
        async with self._session.request(method, path) as response:
            return await response.json()


@pytest.fixture
async def checked(tmp_path):
    (tmp_path / "qwen").mkdir()
    (tmp_path / "qwen" / "config.json").write_text("{}")
    entry = ModelSettings("qwen", aliases=("gpt-4o",))
    daemon = Daemon(Settings(models=ModelsSettings(dirs=(tmp_path,)), model=(entry,)), SystemProbe(), hf_cache=None)
    application = daemon.application()
    async with listening(application) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        yield Checked(session), application
    await daemon.close()


async def test_every_route_is_in_the_document_and_no_other(checked):
    routes = {(route.method, route.resource.canonical) for route in checked[1].router.routes()}
    documented = [tuple(words(call)[0].split()) for call, _ in rows(TEXT, "The API")]
    assert sorted(documented) == sorted(route for route in routes if route[0] != "HEAD")


def shape(value):
    """The keys of an answer, and of those inside it."""
    if isinstance(value, dict):
        return {key: shape(element) for key, element in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else None


def agrees(documented, real):
    """Whether two shapes are the same, as far as the real answer has something."""
    if isinstance(documented, dict) and isinstance(real, dict):
        return documented.keys() == real.keys() and all(agrees(documented[key], real[key]) for key in real)
    if isinstance(documented, list) and isinstance(real, list):
        return agrees(documented[0], real[0])
    return real is None


def examples(heading):
    return [json.loads(text) for at, text in blocks(TEXT, "json") if at == heading]


async def test_the_examples_look_like_the_daemons_answers(checked):
    for heading, number, method, path in (
        ("Models", 0, "GET", "/v1/models"),
        ("Models", 1, "GET", "/admin/models/qwen"),
        ("Loading and unloading", 0, "POST", "/admin/unload"),
        ("Live requests", 1, "POST", "/admin/abort"),
        ("Memory", 0, "GET", "/admin/memory"),
        ("Decisions", 0, "GET", "/admin/decisions"),
        ("The configuration", 0, "POST", "/admin/reload"),
        ("Health", 0, "GET", "/health"),
        ("Health", 1, "GET", "/health/ready"),
        ("Errors", 0, "GET", "/v1/models/qwem"),
    ):
        example, real = examples(heading)[number], await checked[0].answer(method, path)
        if heading in ("Decisions", "Errors"):
            example = without(example, "inputs", "details")
            real = without(real, "inputs", "details")
        assert agrees(shape(example), shape(real)), (path, real)


def without(value, *keys):
    """An answer without what differs from one to the next."""
    if isinstance(value, list):
        return [without(element, *keys) for element in value]
    if not isinstance(value, dict):
        return value
    return {key: None if key in keys else without(element, *keys) for key, element in value.items()}


async def test_the_example_of_an_answer_looks_like_one():
    async with serving() as served:
        status, text = await ask(served, hello(), "/v1/chat/completions", last("Paris."))
    assert status == 200
    assert shape(json.loads(text)) == shape(examples("Answers")[0])


def test_the_examples_of_a_loaded_model_and_a_live_request_look_like_one():
    snapshot = ModelSnapshot(ModelSpec("m", "/m"), State.READY, False, None, 0, 0, 0, 0, engine=EngineStats())
    real = model_object(snapshot, ["completion"], 8192, "thread")
    assert shape(examples("Models")[1]) == {**shape(real), "aliases": [None]}
    [request] = examples("Live requests")[0]["data"]
    assert list(request) == list(RequestView.__struct_fields__)


def test_the_states_and_reasons_are_those_of_the_code():
    shown = TEXT.partition("- `state`: `unloaded`")[2].partition("- `weight_bytes`")[0]
    assert {"unloaded", *words(shown)} == {*State, "kind", *ModelKind}
    reasons = TEXT.partition("The reason is\n")[2].partition("- `engine`")[0]
    assert words(reasons) == [str(reason) for reason in LoadFailure]
    live = TEXT.partition("- `state`: `queued` (for its model)")[2].partition("- `waiting_for`")[0]
    assert {"queued", *words(live)} == {str(state) for state in (*Phase, *RequestState)}


def test_every_kind_of_decision_is_in_the_document():
    code = "\n".join(SOURCES.values())
    kinds = re.findall(r"(?:decide|decisions\.add)\(\s*\"(\w+)\"|unload\(draft, [\w.]+, \"(\w+)\"", code)
    documented = {words(kind)[0] for kind, *_ in rows(TEXT, "Decisions")}
    assert {first or second for first, second in kinds} == documented


def test_every_reason_of_a_drain_and_an_unload_is_in_the_document():
    code = "\n".join(SOURCES.values())
    drains = re.findall(r"drain\(draft, \w+, \"(\w+)\"|decide\(\"drain\", \w+, \"(\w+)\"", code)
    unloads = re.findall(r"unload\(draft, [\w.]+, \"unload\", \"(\w+)\"|cancel_load\(draft, \w+, \"(\w+)\"", code)
    retired = set(re.findall(r"reason = \"(\w+)\" if model.removed else \"(\w+)\"", code)[0])
    documented = {words(kind)[0]: set(words(reasons)) for kind, reasons, _ in rows(TEXT, "Decisions")}
    assert {first or second for first, second in drains} | retired == documented["drain"]
    assert {first or second for first, second in unloads} | retired == documented["unload"]
