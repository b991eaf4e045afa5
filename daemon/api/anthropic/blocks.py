"""Content blocks of Anthropic messages, as far as they are taken; the others with the reason why not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

CacheControl = dict[str, Any]
"""Where a prefix ends that is to be kept. Every prefix is kept here, so it changes nothing."""

_SERVER_TOOL = "tools that run on a server are not there"
_REMOTE_TOOL = "MCP servers are not called here"
_STATE = "it belongs to what Anthropic's servers keep"

REFUSED_BLOCKS: Mapping[str, str] = {
    "advisor_tool_result": _SERVER_TOOL,
    "bash_code_execution_tool_result": _SERVER_TOOL,
    "browser_state": _SERVER_TOOL,
    "code_execution_tool_result": _SERVER_TOOL,
    "compaction": _STATE,
    "container_upload": _STATE,
    "fallback": _STATE,
    "mcp_tool_listing": _REMOTE_TOOL,
    "mcp_tool_result": _REMOTE_TOOL,
    "mcp_tool_use": _REMOTE_TOOL,
    "search_result": "there are no citations; send it as text",
    "server_tool_use": _SERVER_TOOL,
    "text_editor_code_execution_tool_result": _SERVER_TOOL,
    "tool_addition": "send all tools in `tools`",
    "tool_reference": "tools are not searched for; send all of them in `tools`",
    "tool_removal": "send all tools in `tools`",
    "tool_search_tool_result": "tools are not searched for; send all of them in `tools`",
    "web_fetch_tool_result": _SERVER_TOOL,
    "web_search_tool_result": _SERVER_TOOL,
}


class Text(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """A piece of text; `citations` are what an earlier answer had, and mean nothing to a model."""

    text: str
    cache_control: CacheControl | None = None
    citations: list[Any] | None = None


class PlainSource(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """The text of a document."""

    data: str
    media_type: Literal["text/plain"]


class DataSource(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="base64"):
    """An image, or a PDF."""

    data: str
    media_type: str


class UrlSource(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="url"):
    """One that is elsewhere."""

    url: str


class FileSource(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="file"):
    """A file of Anthropic's files API."""

    file_id: str


class Transformations(Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of an image before the model sees it: one that is too large for it is made smaller."""

    oversized_image: Literal["downsize"] | None = None


class Image(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="image"):
    """An image: inline, by URL, or a file."""

    source: DataSource | UrlSource | FileSource
    cache_control: CacheControl | None = None
    transformations: Transformations | None = None


class ContentSource(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="content"):
    """A document in blocks."""

    content: str | list[Text | Image]


class Citations(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether an answer is to say where it has something from."""

    enabled: bool | None = None


class Document(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="document"):
    """A document; title and context are text for the model."""

    source: PlainSource | ContentSource | DataSource | UrlSource | FileSource
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None
    cache_control: CacheControl | None = None


class Caller(Struct, frozen=True, forbid_unknown_fields=True):
    """Who made a call: the model itself."""

    type: Literal["direct"]


class ToolUse(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="tool_use"):
    """A call that the assistant made."""

    id: Annotated[str, Meta(min_length=1)]
    name: Annotated[str, Meta(min_length=1)]
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: Caller | None = None
    toolset_name: None = None


class ToolResult(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="tool_result"):
    """What a tool answered."""

    tool_use_id: Annotated[str, Meta(min_length=1)]
    content: str | list[Text | Image | Document] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None
    toolset_name: None = None


class Thinking(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="thinking"):
    """What the assistant thought."""

    thinking: str
    signature: str


class RedactedThinking(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="redacted_thinking"):
    """What the assistant thought, readable for Anthropic alone."""

    data: str


Block = Text | Image | Document | ToolUse | ToolResult | Thinking | RedactedThinking


class Message(Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a history."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]
