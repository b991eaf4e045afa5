"""Tool calls from a model's text, by mlx-lm's parser for the model, which may do anything and take any time."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from mlxd.engines.types import ToolCall

MAX_CALL_LENGTH = 64 * 1024
"""Characters between a call's markers; a longer one is text."""

REGEX_SECONDS = 1.0
"""CPU time that one regular expression of a parser may take; a call that needs more is text.

Some of the parsers' expressions backtrack without end: a few thousand unfinished tags took glm47 over 15 seconds.
"""

_PACKAGE = "mlx_lm.tool_parsers."
_OPERATIONS = ("search", "match", "fullmatch", "findall", "finditer", "split", "sub", "subn")

Parse = Callable[[str, Any], Any]


class CallParser:
    """Reads the text between a call's markers. It keeps no state between calls."""

    def __init__(self, parse: Parse) -> None:
        self._parse = _with_time_limit(parse)

    def __call__(self, text: str, tools: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, ...] | None:
        """The calls in `text`, at least one; None when it is not a call, or one of them is not whole."""
        if len(text) > MAX_CALL_LENGTH:
            return None
        try:
            parsed = self._parse(text, list(tools))
            calls = tuple(_call(value) for value in (parsed if isinstance(parsed, list) else [parsed]))
        # A parser is regular expressions and evaluations over whatever the model wrote: what it raises is open.
        except Exception:  # noqa: BLE001
            return None
        return calls or None


def _call(value: Any) -> ToolCall:
    """What a parser gave as a call. Raises ValueError or TypeError when it is none."""
    if not isinstance(value, dict):
        raise TypeError("a call is an object")
    name, identity = value["name"], value.get("id")
    if not isinstance(name, str) or not name:
        raise ValueError("a call has a name")
    name.encode()  # half a surrogate pair could not be sent
    if not isinstance(identity, str) or not identity:
        identity = None
    else:
        identity.encode()
    return ToolCall(name, _json_object(value.get("arguments")), identity)


def _json_object(value: Any) -> str:
    """Arguments as the JSON text of an object. Raises ValueError or TypeError for anything else."""
    if value is None or value == "":
        return "{}"
    arguments = json.loads(value, parse_constant=_refuse) if isinstance(value, str) else value
    if not isinstance(arguments, dict):
        raise TypeError("arguments are an object")
    text = value if isinstance(value, str) else _compact(arguments, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return _compact(arguments, ensure_ascii=True)
    return text


def _compact(value: Any, *, ensure_ascii: bool) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, separators=(",", ":"), allow_nan=False)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _with_time_limit(parse: Parse) -> Parse:
    """The same parser out of a private copy of its module, whose regular expressions give up after a while.

    mlx-lm's parsers use the `regex` package, which releases the GIL and takes a time limit; a parser that does not
    is left as it is.
    """
    name = parse.__module__
    spec = importlib.util.find_spec(name) if name.startswith(_PACKAGE) else None
    if spec is None or spec.loader is None:
        return parse
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    library = vars(module).get("re")
    if library is None or library.__name__ != "regex":
        return parse
    for key, value in list(vars(module).items()):
        if isinstance(value, library.Pattern):
            setattr(module, key, SimpleNamespace(**_limited(value)))
    setattr(module, "re", SimpleNamespace(**{**vars(library), **_limited(library)}))  # noqa: B010
    limited: Parse = vars(module)[parse.__name__]
    return limited


def _limited(owner: Any) -> dict[str, Any]:
    return {name: partial(getattr(owner, name), timeout=REGEX_SECONDS) for name in _OPERATIONS}
