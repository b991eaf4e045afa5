"""The text that blocks are for a model that reads text alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlxd.daemon.api.anthropic.blocks import ContentSource, Document, Image, PlainSource, Text, ToolResult
from mlxd.daemon.api.refusals import InvalidField, UnsupportedCapability


def readable(block: Text | Image | Document, place: str) -> str:
    """The text of a block. Raises UnsupportedCapability for one that is no text, and InvalidField."""
    match block:
        case Text():
            return block.text
        case Document():
            return _document(block, place)
        case Image():
            raise UnsupportedCapability(f"{place}: this model takes text only, not images", place)


def result_text(result: ToolResult, place: str) -> str:
    """What a tool answered; a failure is marked in words, since templates know no other way to say it."""
    content = result.content or ""
    text = content if isinstance(content, str) else "\n".join(_texts(content, f"{place}.content"))
    if not result.is_error:
        return text
    return f"Error: {text}" if text else "Error"


def _document(document: Document, place: str) -> str:
    if document.citations is not None and document.citations.enabled:
        where = f"{place}.citations.enabled"
        raise InvalidField(f"{where}: answers have no citations here; leave it out or send false", where)
    match document.source:
        case PlainSource(data):
            text = data
        case ContentSource(content):
            text = content if isinstance(content, str) else "\n".join(_texts(content, f"{place}.source.content"))
        case source:
            kind, where = source.__struct_config__.tag, f"{place}.source"
            raise UnsupportedCapability(f"{where}: only documents of type text or content are taken, not {kind}", where)
    return "\n".join(filter(None, (document.title, document.context, text)))


def _texts(blocks: Sequence[Text | Image | Document], place: str) -> Iterator[str]:
    return (readable(block, f"{place}[{index}]") for index, block in enumerate(blocks))
