"""What blocks are for a model: text, or an image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlxd.daemon.api.anthropic.blocks import (
    ContentSource,
    DataSource,
    Document,
    Image,
    PlainSource,
    Text,
    ToolResult,
    UrlSource,
)
from mlxd.daemon.api.refusals import InvalidField, UnsupportedCapability
from mlxd.daemon.api.sent_images import Content, SentImage, content_of


def readable(block: Text | Image | Document, place: str) -> str | SentImage:
    """The text or the image of a block. Raises UnsupportedCapability for a document without text, and InvalidField."""
    match block:
        case Text():
            return block.text
        case Document():
            return _document(block, place)
        case Image():
            return _image(block, place)


def result_content(result: ToolResult, place: str) -> Content:
    """What a tool answered; a failure is marked in words, since templates know no other way to say it."""
    content = result.content or ""
    pieces = [content] if isinstance(content, str) else list(_pieces(content, f"{place}.content"))
    return content_of(_marked(pieces) if result.is_error else pieces)


def _marked(pieces: Sequence[str | SentImage]) -> Sequence[str | SentImage]:
    match pieces:
        case [str(text), *rest] if text:
            return [f"Error: {text}", *rest]
        case _:
            return ["Error", *(piece for piece in pieces if piece)]


def _image(image: Image, place: str) -> SentImage:
    match image.source:
        case DataSource(data, media_type):
            return SentImage(place, data, is_url=False, media_type=media_type)
        case UrlSource(url):
            return SentImage(place, url)
        case _:
            where = f"{place}.source"
            raise InvalidField(f"{where}: no files are kept here; send the image as base64", where)


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


def _texts(blocks: Sequence[Text | Image], place: str) -> Iterator[str]:
    for index, block in enumerate(blocks):
        if isinstance(block, Image):
            where = f"{place}[{index}]"
            raise UnsupportedCapability(f"{where}: documents are read as text only; send the image by itself", where)
        yield block.text


def _pieces(blocks: Sequence[Text | Image | Document], place: str) -> Iterator[str | SentImage]:
    return (readable(block, f"{place}[{index}]") for index, block in enumerate(blocks))
