"""From the messages of an Anthropic client to those that chat templates read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from mlxd.daemon.api.anthropic.block_text import readable, result_content
from mlxd.daemon.api.anthropic.blocks import (
    Block,
    Document,
    Image,
    Message,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from mlxd.daemon.api.anthropic.signature import hidden_in
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.sent_images import SentImage, content_of

# Claude Code puts this into its system prompt, with a value of its own in every request: no two prompts would have
# more than their first few tokens in common.
BILLING = "x-anthropic-billing-header:"

Placed = tuple[str, Block]


@dataclass(frozen=True, slots=True)
class History:
    """Messages for a template. With `continues` the last one is the beginning of the answer, at `ending`."""

    messages: tuple[Mapping[str, Any], ...]
    continues: bool
    ending: str


@dataclass(slots=True)
class Calls:
    """The tool calls of a history. `open` are those of the last turn, which the next one has to answer."""

    made: set[str] = field(default_factory=set)
    open: dict[str, tuple[str, ToolUse]] = field(default_factory=dict)

    def make(self, call: ToolUse, place: str) -> None:
        """The assistant calls a tool. Raises InvalidField for an id that another call has."""
        if call.id in self.made:
            raise InvalidField(f"{place}.id: another tool_use has this id", f"{place}.id")
        self.made.add(call.id)
        self.open[call.id] = (place, call)

    def answer(self, results: Mapping[str, tuple[str, ToolResult]]) -> Iterator[dict[str, Any]]:
        """Messages with the results, in the order of the calls: not all templates show which is whose.

        Raises InvalidField for a result that no open call asks for, and for a call that has none.
        """
        for identity, (place, _) in results.items():
            if identity not in self.open:
                where = f"{place}.tool_use_id"
                raise InvalidField(f"{where}: no tool_use of the message before has this id", where)
        for identity, (place, call) in self.open.items():
            if identity not in results:
                raise InvalidField(f"{place}: it needs a tool_result at the beginning of the next message", place)
            where, result = results[identity]
            content = result_content(result, where)
            yield {"role": "tool", "content": content, "tool_call_id": identity, "name": call.name}
        self.open = {}


def read_history(system: str | Sequence[Text] | None, messages: Sequence[Message]) -> History:
    """Messages for a chat template. Those of the same role in a row are one turn.

    Raises InvalidField and UnsupportedCapability.
    """
    calls, read = Calls(), list(_system(system))
    ending, ends_open = "", False
    for role, turn in groupby(enumerate(messages), key=lambda item: item[1].role):
        blocks = [placed for index, message in turn for placed in _placed(message, f"messages[{index}]")]
        if role != "user":
            read += calls.answer({})
        match role:
            case "user":
                read += _user(blocks, calls)
            case "assistant":
                read.append(_assistant(blocks, calls))
            case _:
                read.append({"role": "system", "content": content_of(_pieces(blocks, role))})
        ending, ends_open = blocks[-1][0] if blocks else "messages", role == "assistant"
    list(calls.answer({}))
    continues = ends_open and _goes_on(read[-1], ending)
    if ends_open and not continues:
        read.pop()
    if not read:
        raise InvalidField("messages: there is nothing in them to answer", "messages")
    return History(tuple(read), continues, ending)


def has_billing(system: str | Sequence[Text] | None) -> bool:
    """Whether a system prompt has the line that is left out of it."""
    return any(text.startswith(BILLING) for text in _system_texts(system))


def _system(system: str | Sequence[Text] | None) -> Iterator[dict[str, Any]]:
    texts = (text.partition("\n")[2] if text.startswith(BILLING) else text for text in _system_texts(system))
    if text := "\n".join(filter(None, texts)):
        yield {"role": "system", "content": text}


def _system_texts(system: str | Sequence[Text] | None) -> list[str]:
    if system is None or isinstance(system, str):
        return [system or ""]
    return [block.text for block in system]


def _placed(message: Message, place: str) -> list[Placed]:
    where = f"{place}.content"
    if isinstance(message.content, str):
        return [(where, Text(message.content))]
    if not message.content and message.role != "assistant":
        raise InvalidField(f"{where}: it is empty", where)
    return [(f"{where}[{index}]", block) for index, block in enumerate(message.content)]


def _user(blocks: Sequence[Placed], calls: Calls) -> Iterator[dict[str, Any]]:
    """The results of tools, which come first, and then what the user says."""
    results: dict[str, tuple[str, ToolResult]] = {}
    said: list[str | SentImage] = []
    for place, block in blocks:
        if not isinstance(block, ToolResult):
            said += _pieces([(place, block)], "user")
            continue
        if said:
            raise InvalidField(f"{place}: tool_result blocks come before everything else in their turn", place)
        if block.tool_use_id in results:
            raise InvalidField(f"{place}.tool_use_id: another tool_result has this id", f"{place}.tool_use_id")
        results[block.tool_use_id] = (place, block)
    yield from calls.answer(results)
    if said:
        yield {"role": "user", "content": content_of(said)}


def _assistant(blocks: Sequence[Placed], calls: Calls) -> dict[str, Any]:
    texts, thoughts, made = [], [], []
    for place, block in blocks:
        match block:
            case Text():
                texts.append(block.text)
            case Thinking():
                thoughts.append(block.thinking or hidden_in(block.signature))
            case RedactedThinking():
                pass
            case ToolUse():
                calls.make(block, place)
                function = {"name": block.name, "arguments": block.input}
                made.append({"id": block.id, "type": "function", "function": function})
            case _:
                raise _misplaced(block, place, "assistant")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    if made:
        message["tool_calls"] = made
    return message


def _pieces(blocks: Sequence[Placed], role: str) -> Iterator[str | SentImage]:
    for place, block in blocks:
        if not isinstance(block, Text | Image | Document) or (role == "system" and not isinstance(block, Text)):
            raise _misplaced(block, place, role)
        yield readable(block, place)


def _misplaced(block: Block, place: str, role: str) -> InvalidField:
    where = f"{place}.type"
    return InvalidField(f"{where}: {block.__struct_config__.tag} blocks are not for {role} messages", where)


def _goes_on(last: Mapping[str, Any], place: str) -> bool:
    """Whether the answer is to go on from the assistant's last message. Raises InvalidField where none could."""
    text = str(last["content"])
    if "reasoning_content" in last and not text:
        raise InvalidField(f"{place}: an answer cannot go on from thinking alone; leave it out or add text", place)
    if text != text.rstrip():
        raise InvalidField(f"{place}: the beginning of an answer may not end with white space", place)
    return bool(text)
