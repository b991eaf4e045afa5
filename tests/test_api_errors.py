"""The error table: complete, and as the public contract says."""

import inspect
import json
from dataclasses import asdict

import pytest

from mlxd.daemon import config_errors
from mlxd.daemon.api import refusals
from mlxd.daemon.api.error_shapes import to_response
from mlxd.daemon.api.errors import TABLE, describe
from mlxd.daemon.api.openai.answer import ChunkWriter
from mlxd.engines import errors as engine
from mlxd.registry import errors as registry
from mlxd.registry import names

MODULES = (refusals, config_errors, engine, registry, names)
CLASSES = [
    kind
    for module in MODULES
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, Exception) and kind.__module__ == module.__name__
]
FAILURE = registry.Failure("bad_files", "no weights", 2, 1234.5)

CASES = [
    (refusals.InvalidField("m", "top_p"), 400, "invalid_request", None, None),
    (refusals.UnsupportedCapability("m", "messages"), 400, "unsupported_capability", None, None),
    (refusals.InvalidApiKey("m"), 401, "invalid_api_key", None, None),
    (refusals.Forbidden("m"), 403, "forbidden", None, None),
    (refusals.HostNotAllowed("m"), 403, "host_not_allowed", None, None),
    (refusals.OriginNotAllowed("m"), 403, "origin_not_allowed", None, None),
    (refusals.NotFound("m"), 404, "not_found", None, None),
    (refusals.RequestNotFound("m"), 404, "request_not_found", None, None),
    (refusals.MethodNotAllowed("m"), 405, "method_not_allowed", None, None),
    (refusals.BodyTooLarge("m"), 413, "body_too_large", None, None),
    (refusals.UnsupportedMediaType("m"), 415, "unsupported_media_type", None, None),
    (
        config_errors.ConfigError(config_errors.Problem("m", "server.port", "mlxd.toml", 3)),
        400,
        "invalid_request",
        {"problems": [{"message": "m", "key": "server.port", "source": "mlxd.toml", "line": 3}]},
        None,
    ),
    (names.UnknownModel("x", ("y",)), 404, "model_not_found", {"suggestions": ["y"]}, None),
    (names.AmbiguousModel("x", ("a", "b")), 404, "model_not_found", {"suggestions": ["a", "b"]}, None),
    (registry.ModelNotLoaded("x"), 409, "model_not_loaded", None, None),
    (registry.LoadNotRunning("x", "ready"), 409, "load_not_running", None, None),
    (registry.ResidencyQueueFull(3, 4.2), 429, "queue_full", None, "5"),
    (registry.ModelRemoved("x"), 404, "model_not_found", {"suggestions": []}, None),
    (registry.ModelWaitTimeout("x", 3.0, 0.2), 503, "model_wait_timeout", None, "1"),
    (registry.ModelLoadFailed("x", FAILURE, 4.2), 503, "model_load_failed", asdict(FAILURE), "5"),
    (registry.ModelUnloaded("x"), 503, "model_unloaded", None, "1"),
    (registry.ShuttingDown(), 503, "shutting_down", None, "5"),
    (
        registry.ModelTooLarge("x", 9, 5, "memory.soft"),
        507,
        "model_too_large",
        {"needed_bytes": 9, "limit_bytes": 5, "limit": "memory.soft"},
        None,
    ),
    (engine.InvalidRequest("m", "messages"), 400, "invalid_request", None, None),
    (
        engine.ContextLengthExceeded(9, 2, 10),
        400,
        "context_length_exceeded",
        {"prompt_tokens": 9, "max_tokens": 2, "context_length": 10},
        None,
    ),
    (engine.EngineQueueFull(3, 3), 429, "queue_full", None, "1"),
    (
        engine.LoadError(engine.LoadFailure.STALLED, "m"),
        503,
        "model_load_failed",
        {"reason": "stalled", "message": "m"},
        "5",
    ),
    (engine.EngineClosed("m"), 503, "model_unloaded", None, "1"),
    (
        engine.FootprintExceeded(9, 5, "cgroup"),
        503,
        "memory_ceiling",
        {"footprint_bytes": 9, "ceiling_bytes": 5, "limit": "cgroup"},
        "2",
    ),
    (
        engine.PrefillMemoryExceeded("r", 9, 5),
        507,
        "prefill_memory_exceeded",
        {"estimated_bytes": 9, "limit_bytes": 5},
        None,
    ),
    (engine.StepFailed("secret"), 500, "internal_error", None, None),
    (engine.ModelOwnershipError("secret"), 500, "internal_error", None, None),
    (ZeroDivisionError("secret"), 500, "internal_error", None, None),
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_class_has_a_row_of_its_own(kind):
    assert kind in TABLE


def test_the_table_has_no_row_for_anything_else():
    assert set(TABLE) == set(CLASSES)


@pytest.mark.parametrize(
    ("error", "status", "code", "details", "retry_after"), CASES, ids=lambda value: type(value).__name__
)
def test_an_error_is_answered_as_the_contract_says(error, status, code, details, retry_after):
    answer = to_response(error, "req-7")
    shown = json.loads(answer.body)["error"]
    assert answer.status == status
    assert answer.content_type == "application/json"
    assert set(shown) == {"message", "type", "code", "param", "details"}
    assert shown["code"] == code
    assert shown["details"] == details
    assert shown["message"]
    assert answer.headers.get("Retry-After") == retry_after
    assert answer.headers.get("x-should-retry") == ("false" if status == 507 else None)


@pytest.mark.parametrize("error", [case[0] for case in CASES if case[1] == 500], ids=lambda e: type(e).__name__)
def test_a_bug_shows_its_request_id_and_nothing_else(error):
    message = describe(error, "req-7").message
    assert "req-7" in message
    assert "secret" not in message


def test_a_dead_engine_says_what_to_do_and_not_what_broke_in_it():
    answer = describe(engine.EngineDead("3 steps failed; the last: secret"), "r")
    assert (answer.status, answer.code) == (503, "model_load_failed")
    assert answer.details["reason"] == "crashed"
    assert "secret" not in answer.envelope().decode()
    assert int(answer.headers["Retry-After"]) >= 1


@pytest.mark.parametrize(("seconds", "shown"), [(0.0, "1"), (1.0, "1"), (1.01, "2"), (299.5, "300"), (-3.0, "1")])
def test_retry_after_is_whole_seconds_rounded_up_and_at_least_one(seconds, shown):
    assert describe(registry.ModelWaitTimeout("x", 1, seconds), "r").headers["Retry-After"] == shown


def test_a_subclass_of_a_known_error_is_answered_like_it():
    class Novel(engine.EngineQueueFull):
        pass

    assert describe(Novel(1, 1), "r").code == "queue_full"


def test_param_names_the_field_at_fault():
    assert describe(refusals.InvalidField("m", "messages[0].content"), "r").param == "messages[0].content"
    assert describe(engine.InvalidRequest("m", "prompt"), "r").param == "prompt"
    assert describe(names.UnknownModel("x", ()), "r").param == "model"
    assert describe(registry.ShuttingDown(), "r").param is None


def failed(error):
    return ChunkWriter(None).fail(describe(error, "r"))


def test_an_error_in_a_stream_is_one_event():
    event = failed(engine.FootprintExceeded(9, 5, "auto")).decode()
    assert event.startswith("data: {")
    assert event.endswith("\n\n")
    assert event.count("\n") == 2
    assert json.loads(event.removeprefix("data: "))["error"]["code"] == "memory_ceiling"


def test_a_message_of_several_lines_stays_one_event():
    assert failed(refusals.InvalidField("one\ntwo\n\nthree")).count(b"\n") == 2


def test_a_message_with_bytes_that_are_no_text_is_still_an_answer():
    answer = describe(refusals.OriginNotAllowed("origin \udcff is not allowed"), "r")
    assert json.loads(answer.envelope())["error"]["message"] == "origin \\udcff is not allowed"
