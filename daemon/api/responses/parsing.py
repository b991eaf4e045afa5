"""From the body of a call to a checked request, ready for a conversation to be put together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from mlxd.daemon.api.answer_options import AnswerOptions
from mlxd.daemon.api.body import convert
from mlxd.daemon.api.openai.guides import ObjectFormat
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.responses.bodies import (
    ENCRYPTED,
    LOGPROBS,
    AllowedChoice,
    CreateBody,
    FunctionChoice,
    FunctionTool,
    PromptBody,
    SchemaFormat,
    Tool,
)
from mlxd.daemon.api.responses.fields import COUNT, CREATE
from mlxd.daemon.api.responses.items import (
    CallItem,
    ImagePart,
    MessageItem,
    Part,
    ReasoningItem,
    ReferenceItem,
    ResultItem,
    SentItem,
    with_types,
)
from mlxd.daemon.api.tool_use import ToolUse, function_tool
from mlxd.daemon.api.wanted_guide import ANY_OBJECT, WantedGuide, schema_guide
from mlxd.daemon.settings import SamplingSettings

# Characters of a call's arguments that are as much work as a part.
_ARGUMENT = 100
_TOOL_TYPES = tuple(str(kind.__struct_config__.tag) for kind in get_args(Tool))


@dataclass(frozen=True, slots=True)
class WantedPrompt:
    """A checked request for a prompt. References among its `items` are not resolved yet.

    `weight` is how much work they are, one for a part that is text; `ignored` names what was sent and changes nothing.
    """

    body: PromptBody
    items: tuple[SentItem, ...]
    weight: int
    tools: ToolUse
    options: AnswerOptions
    ignored: tuple[str, ...]


def parse_create(body: Mapping[str, Any]) -> tuple[CreateBody, WantedPrompt]:
    """Check the body of a call that makes a response. Raises InvalidField."""
    CREATE.check(body)
    create = convert(_typed(body), CreateBody)
    if create.stream_options is not None and create.stream_options.include_obfuscation:
        where = "stream_options.include_obfuscation"
        raise InvalidField(f"{where} is not supported here; leave it out or send false", where)
    sampling = SamplingSettings(temperature=create.temperature, top_p=create.top_p, max_tokens=create.max_output_tokens)
    options = AnswerOptions(
        sampling=sampling, stream=bool(create.stream), logprobs=_logprobs(create), guide=_guide(create)
    )
    return create, _prompt(create, options, [*CREATE.passed_over(body), *_ignored_in_create(create)])


def parse_count(body: Mapping[str, Any]) -> WantedPrompt:
    """Check the body of a call that counts the tokens of a prompt. Raises InvalidField."""
    COUNT.check(body)
    prompt = convert(_typed(body), PromptBody)
    return _prompt(prompt, AnswerOptions(guide=_guide(prompt)))


def _ignored_in_create(body: CreateBody) -> Iterator[str]:
    if ENCRYPTED in (body.include or ()):
        yield f"include.{ENCRYPTED}"
    if body.stream_options is not None and body.stream_options.reasoning_summary_delivery is not None:
        yield "stream_options.reasoning_summary_delivery"


def _ignored_in_prompt(body: PromptBody) -> Iterator[str]:
    for tool in body.tools or ():
        if not isinstance(tool, FunctionTool):
            yield f"tools.{tool.__struct_config__.tag}"
    if body.reasoning is not None and body.reasoning.summary is not None:
        yield "reasoning.summary"
    if body.reasoning is not None and body.reasoning.generate_summary is not None:
        yield "reasoning.generate_summary"


def _ignored_in_items(items: Iterable[SentItem]) -> Iterator[str]:
    for item in items:
        match item:
            case MessageItem(content=list(parts)):
                yield from ("input.content.detail" for part in parts if _has_detail(part))
            case ResultItem(output=list(parts)):
                yield from ("input.output.detail" for part in parts if _has_detail(part))


def _has_detail(part: Part) -> bool:
    return isinstance(part, ImagePart) and part.detail is not None


def _prompt(body: PromptBody, options: AnswerOptions, ignored: Iterable[str] = ()) -> WantedPrompt:
    tools = _tool_use(body)
    if tools.must_call and options.guide is not None:
        param = options.guide.param
        raise InvalidField(f"tool_choice cannot be combined with {param}; send one of them", "tool_choice")
    items = (MessageItem("user", body.input),) if isinstance(body.input, str) else tuple(body.input or ())
    if not items and body.previous_response_id is None:
        raise InvalidField("input: it is required, as text or as at least one item", "input")
    _check_references(items)
    ignored = (*ignored, *_ignored_in_prompt(body), *_ignored_in_items(items))
    return WantedPrompt(body, items, sum(map(_weight, items)), tools, options, ignored)


def _check_references(items: Sequence[SentItem]) -> None:
    """An item is referred to once, so that a short request cannot stand for a conversation of any length."""
    seen: set[str] = set()
    for index, item in enumerate(items):
        if isinstance(item, ReferenceItem):
            if item.id in seen:
                raise InvalidField(f"input[{index}].id: another item_reference has this id", f"input[{index}].id")
            seen.add(item.id)


def _weight(item: SentItem) -> int:
    match item:
        case MessageItem(content=list(parts)) | ResultItem(output=list(parts)) | ReasoningItem(content=list(parts)):
            return 1 + len(parts)
        case CallItem(arguments=text):
            return 1 + len(text) // _ARGUMENT
        case _:
            return 1


def _typed(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with a type for each item. Raises InvalidField for types that are not served."""
    _check_types(body.get("tools"), "tools", _TOOL_TYPES)
    _check_types([body.get("tool_choice")], "tool_choice", ("function", "allowed_tools"))
    return {**body, "input": with_types(body.get("input"))}


def _check_types(values: object, field: str, served: Sequence[str]) -> None:
    for index, value in enumerate(values if isinstance(values, list) else ()):
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind not in served:
            where = f"{field}[{index}].type" if field == "tools" else f"{field}.type"
            raise _not_served(where, kind)


def _not_served(where: str, kind: str) -> InvalidField:
    return InvalidField(f"{where}: {kind[:60]} is not served here; only functions of the client are", where)


def _logprobs(body: CreateBody) -> int | None:
    if LOGPROBS in (body.include or ()):
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidField(f"top_logprobs needs include: [{LOGPROBS!r}]", "top_logprobs")
    return None


def _guide(body: PromptBody) -> WantedGuide | None:
    match body.text.format if body.text is not None else None:
        case ObjectFormat():
            return WantedGuide(ANY_OBJECT, "text.format")
        case SchemaFormat(schema=schema):
            return schema_guide(schema, "text.format")
        case _:
            return None


def _tool_use(body: PromptBody) -> ToolUse:
    tools, choice = _functions(body.tools or ()), body.tool_choice
    names = _check_functions(body.tools or ())
    parallel = body.parallel_tool_calls is not False
    match choice:
        case FunctionChoice(name):
            _check_name(name, names, "tool_choice.name")
            return ToolUse(_offered(tools), 1, must_call=True, name=name)
        case AllowedChoice(mode, allowed):
            for index, each in enumerate(allowed):
                _check_name(each.name, names, f"tool_choice.tools[{index}].name")
            wanted = {each.name for each in allowed}
            left = [tool for tool in tools if tool.name in wanted]
            return ToolUse(_offered(left), None if parallel else 1, must_call=mode == "required")
    if choice == "required" and not tools:
        raise InvalidField("tool_choice: required needs tools to choose from", "tool_choice")
    offered = () if choice == "none" else _offered(tools)
    return ToolUse(offered, None if parallel else 1, must_call=choice == "required")


def _functions(tools: Sequence[Tool]) -> list[FunctionTool]:
    """The tools that are served. Raises InvalidField when there are others alone."""
    functions = [tool for tool in tools if isinstance(tool, FunctionTool)]
    if tools and not functions:
        raise _not_served("tools[0].type", str(tools[0].__struct_config__.tag))
    return functions


def _check_functions(tools: Sequence[Tool]) -> set[str]:
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if not isinstance(tool, FunctionTool):
            continue
        place = f"tools[{index}]"
        for field, wanted in (("defer_loading", tool.defer_loading), ("async", tool.runs_async)):
            if wanted:
                raise InvalidField(f"{place}.{field} is not supported here; leave it out", f"{place}.{field}")
        if tool.name in names:
            raise InvalidField(f"{place}.name: another tool has this name", f"{place}.name")
        names.add(tool.name)
    return names


def _check_name(name: str, names: set[str], where: str) -> None:
    if name not in names:
        raise InvalidField(f"{where}: no function of tools has this name", where)


def _offered(tools: Sequence[FunctionTool]) -> tuple[Mapping[str, Any], ...]:
    return tuple(function_tool(tool.name, tool.description, tool.parameters) for tool in tools)
