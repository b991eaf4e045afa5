"""Bad bodies to every call that takes one: always a documented 4xx with its code, and nothing of it reaches an engine.

What is bad is read from the API's own document: a value that the schema of a field does not allow.
"""

import gzip
import json

import aiohttp
import pytest
from api_document import bodies, body_schema, example, operation, path, validator
from api_fakes import serving

from mlxd.daemon.api.body import MAX_DEPTH
from mlxd.daemon.api.errors import TABLE

JSON = "application/json"
CODES = {row.code for row in TABLE.values()}
BODIES = pytest.mark.parametrize("route", list(bodies()), ids="{0.method} {0.path}".format)

VALUES = (
    *(None, True, False, 0, -1, 1.5, 2**53 + 2, 10**30, -1e308, "", "x", "1", "\x00", "ü" * 5000),
    *([], [None], [1, "x"], [[]], [{}], [{"type": None}], [{"role": "nobody"}], ["x"] * 2000),
    *({}, {"type": "nothing"}, {"type": 1}, {"x": [{"y": None}]}, {str(number): 1 for number in range(2000)}),
)


def nested(depth):
    return b'{"x":' + b"[" * depth + b"]" * depth + b"}"


def broken(whole):
    """Bytes that are no JSON object at all, and how they are announced."""
    text = json.dumps(whole).encode()
    yield from ((text[:length], {}) for length in range(1, len(text), max(1, len(text) // 12)))
    for data in (
        b"null",
        b"[]",
        b"1",
        b'"x"',
        b"true",
        b"{}{}",
        text + b"x",
        b"\xff\xfe{}",
        b'{"model":"\xc3("}',
        b"{'a':1}",
    ):
        yield data, {}
    for number in (b"NaN", b"Infinity", b"-Infinity", b"01", b"1.", b".5", b"+1", b"1e", b"0x10", b"1e999"):
        yield b'{"model":' + number + b"}", {}
    for odd in (
        b'{"model":"\\ud800"}',
        b'{"model":"\x01"}',
        b'{"model":"a\nb"}',
        b'{"mod',
        b'{"model"}',
        b'{"model":,}',
        b"{,}",
    ):
        yield odd, {}
    yield nested(MAX_DEPTH), {}
    yield nested(200_000), {}
    for kind in (
        "text/plain",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
        "application/xml",
        "x",
    ):
        yield text, {"Content-Type": kind}
    yield text, {"Content-Type": f"{JSON}; charset=latin-1"}
    yield text, {"Content-Encoding": "br"}
    yield text, {"Content-Encoding": "gzip"}
    yield gzip.compress(text)[:-9], {"Content-Encoding": "gzip"}
    yield gzip.compress(text) + b"more", {"Content-Encoding": "gzip"}


def refusal(answer):
    """Code and param of a refusal, in whatever shape."""
    error = answer["error"]
    return (error["code"], error["param"]) if isinstance(error, dict) else (answer["code"], answer["param"])


class Attacked:
    """One call of a served application, and what it says to bad bodies."""

    def __init__(self, http, route):
        self._http = http
        self._route = route
        self._errors = validator(operation(route)["responses"]["4XX"]["content"][JSON]["schema"])

    async def fault(self, data, headers, names=()):
        """What is wrong with the answer to `data`; None for a refusal, which names one of `names` if there are any."""
        sent = {"Content-Type": JSON, **headers}
        async with self._http.request(self._route.method, path(self._route), data=data, headers=sent) as answer:
            text = await answer.text()
        if not 400 <= answer.status < 500:
            return answer.status, text
        shown = json.loads(text)
        if not self._errors.is_valid(shown):
            return "shape", text
        code, param = refusal(shown)
        if code not in CODES:
            return "code", text
        return None if not names or (param or "").startswith(names) else ("param", text)


async def attacked(route, attacks):
    """The attacks that were not refused as they should."""
    async with serving() as served, aiohttp.ClientSession(served.url) as http:
        call = Attacked(http, route)
        faults = [
            (data[:200], headers, fault)
            for data, headers, names in attacks
            if (fault := await call.fault(data, headers, names))
        ]
        assert served.engine.arrivals.empty()
        assert served.registry.waits.empty()
    return faults


@BODIES
async def test_what_is_no_json_object_is_refused(route):
    assert (
        await attacked(route, [(data, headers, ()) for data, headers in broken(example(route) or {"model": "m"})]) == []
    )


def wrong_values(route):
    """Bodies with one field that the schema does not allow, and the names that the refusal may give."""
    schema, good = body_schema(route), example(route)
    for name, kind in schema["properties"].items():
        check = validator(kind)
        for value in VALUES:
            if not check.is_valid(value):
                yield json.dumps({**good, name: value}).encode(), {}, (name,)
    yield json.dumps({**good, "no_such_field": 1}).encode(), {}, ("no_such_field",)
    for name in schema.get("required", ()):
        yield json.dumps({key: value for key, value in good.items() if key != name}).encode(), {}, (name,)


@BODIES
async def test_a_field_with_a_wrong_value_is_refused_by_name(route):
    attacks = list(wrong_values(route))
    assert attacks
    assert await attacked(route, attacks) == []
