"""What was sent of an image becomes the bytes of its file, or is refused with its place."""

import pytest
from image_bodies import FILES, GIF, JPEG, PNG, WEBP, b64, data_url

from mlxd.daemon.api import image_data
from mlxd.daemon.api.image_data import decode_inline, inline_size
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.sent_images import SentImage
from mlxd.daemon.image_formats import MEDIA_TYPES, media_type_of

MOST = 1_000_000


def decoded(url, most=MOST):
    return decode_inline(SentImage("here", url), most)


def plain(data, media_type=None):
    return decode_inline(SentImage("here", data, is_url=False, media_type=media_type), MOST)


def refused(decode, *args):
    with pytest.raises(InvalidField) as caught:
        decode(*args)
    assert caught.value.param == "here"
    assert str(caught.value).startswith("here: ")
    return str(caught.value)


def test_a_file_is_told_by_its_first_bytes():
    assert {kind: media_type_of(data) for kind, data in FILES.items()} == {kind: kind for kind in MEDIA_TYPES}
    assert media_type_of(b"GIF87a...") == "image/gif"
    for data in (b"", b"\x89PNG", b"RIFF\0\0\0\0WAVE", b"<svg>", b"BM..", b"II*\0", b"\0\0\0\x20ftypheic", PNG[1:]):
        assert media_type_of(data) is None


@pytest.mark.parametrize("kind", FILES)
def test_a_data_url_of_each_kind_is_decoded(kind):
    assert decoded(data_url(FILES[kind], kind)) == FILES[kind]


@pytest.mark.parametrize(
    ("head", "data"),
    [
        ("data:image/jpg;base64,", JPEG),
        ("DATA:IMAGE/PNG;BASE64,", PNG),
        ("data:image/png;charset=utf-8;base64,", PNG),
        ("data:image/png;name=a.png;base64,", PNG),
    ],
)
def test_spellings_of_a_data_url_that_are_in_use_are_taken(head, data):
    assert decoded(head + b64(data)) == data


def test_a_file_of_another_type_than_is_named_is_refused():
    assert "is image/jpeg, not image/png" in refused(decoded, data_url(JPEG, "image/png"))
    assert "is image/webp, not image/gif" in refused(plain, b64(WEBP), "image/gif")
    assert plain(b64(WEBP), "image/webp") == WEBP


def test_base64_without_a_type_is_taken_where_an_api_names_none():
    assert plain(b64(GIF)) == GIF


@pytest.mark.parametrize("kind", ["text/plain", "", "image/svg+xml", "application/octet-stream", "video/mp4", "x" * 99])
def test_another_media_type_is_refused_whatever_the_bytes_are(kind):
    assert "media type" in refused(decoded, f"data:{kind};base64,{b64(PNG)}")
    if kind:
        assert "media type" in refused(plain, b64(PNG), kind)


@pytest.mark.parametrize(
    "url",
    [
        "data:",
        "data:image/png",
        "data:image/png;base64" + "x" * 300,
        "data:image/png" + ";a=b" * 100 + ";base64,AAAA",
    ],
)
def test_what_is_no_data_url_is_refused(url):
    assert "data URL" in refused(decoded, url)


@pytest.mark.parametrize("options", ["", ";charset=utf-8", ";base64;x=1"])
def test_a_data_url_that_is_not_base64_is_refused(options):
    assert ";base64," in refused(decoded, f"data:image/png{options},{b64(PNG)}")


@pytest.mark.parametrize(
    "text",
    [
        "A",
        "AA",
        "AAA",
        "AA=",
        "AAA=AAAA",
        "AA==AA==",
        "AAAA====",
        "=AAA",
        "====",
        "AAAA\nAAAA",
        "AAA AAAA",
        "AA-_",
        "AA%3",
        "ÄÄÄÄ",
        "data:image/png;base64,AAAA",
        "\ud800AAA",
    ],
)
def test_what_is_not_strict_base64_is_refused(text):
    assert "base64" in refused(plain, text)


def test_padding_inside_is_refused_where_it_ends_a_piece(monkeypatch):
    monkeypatch.setattr(image_data, "_PIECE", 4)
    assert plain(b64(PNG)) == PNG
    assert "base64" in refused(plain, "AA==" + b64(PNG))


def test_an_empty_image_and_a_file_that_is_none_are_refused():
    assert "empty" in refused(decoded, data_url(b""))
    assert "PNG, JPEG, WebP or GIF" in refused(decoded, data_url(b"%PDF-1.7"))
    assert "PNG, JPEG, WebP or GIF" in refused(decoded, data_url(b"<svg xmlns='...'/>"))


@pytest.mark.parametrize("padding", [0, 1, 2])
def test_a_file_may_have_as_many_bytes_as_are_taken_and_no_more(padding):
    data = PNG + bytes(padding)
    assert decoded(data_url(data), len(data)) == data
    assert f"{len(data) - 1} bytes (images.max_bytes)" in refused(decoded, data_url(data), len(data) - 1)


def test_a_file_that_is_too_large_is_refused_before_anything_of_it_is_decoded():
    assert "images.max_bytes" in refused(plain, "!" * 4 * MOST)


def test_what_was_sent_is_let_go_and_does_not_show():
    image = SentImage("here", data_url(PNG))
    assert b64(PNG) not in repr(image)
    assert inline_size(image) >= len(PNG)
    decode_inline(image, MOST)
    assert image.sent == ""


def test_only_a_url_that_is_no_data_url_is_remote():
    assert SentImage("here", "https://a.example/x.png").is_remote
    assert SentImage("here", "file:///etc/passwd").is_remote
    assert not SentImage("here", "Data:image/png;base64,AAAA").is_remote
    assert not SentImage("here", "https", is_url=False).is_remote
