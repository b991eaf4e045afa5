"""Image files of every kind become upright pictures in three colours, or an InvalidRequest that names their place."""

from __future__ import annotations

import hashlib
import io
import struct
import zlib

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from tiny_vision import png
from vision_harness import file_of

from mlxd.engines.errors import InvalidRequest
from mlxd.engines.image_files import decode_image, decode_images, image_digest
from mlxd.engines.prompt_images import ImageInput

PARAM = "messages[2].content[1].image_url"
MOST = 10_000
SIZE = (40, 24)
PICTURE = Image.open(io.BytesIO(png("gradient", SIZE)))


def decode(data: bytes, max_pixels: int = MOST) -> Image.Image:
    return decode_image(ImageInput(data, PARAM, max_pixels))


def refusal(data: bytes, max_pixels: int = MOST) -> str:
    with pytest.raises(InvalidRequest) as refused:
        decode(data, max_pixels)
    assert refused.value.param == PARAM
    assert str(refused.value).startswith(f"{PARAM}: ")
    return str(refused.value).removeprefix(f"{PARAM}: ")


def difference(first: Image.Image, second: Image.Image) -> int:
    """The largest of any pixel's colour."""
    assert (first.mode, first.size) == (second.mode, second.size)
    return max(abs(a - b) for a, b in zip(first.tobytes(), second.tobytes(), strict=True))


LOSSLESS = {
    "png": file_of(PICTURE, "PNG"),
    "interlaced png": file_of(PICTURE, "PNG", interlace=1),
    "webp": file_of(PICTURE, "WEBP", lossless=True),
}


@pytest.mark.parametrize("kind", LOSSLESS)
def test_lossless_files_keep_every_pixel_and_have_one_digest(kind):
    picture = decode(LOSSLESS[kind])
    assert difference(picture, PICTURE) == 0
    assert image_digest(picture) == image_digest(PICTURE)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {"quality": 95, "subsampling": 0}),
        ("JPEG", {"quality": 95, "subsampling": 0, "progressive": True}),
        ("WEBP", {"quality": 95}),
        ("GIF", {}),
    ],
)
def test_lossy_files_are_like_what_they_were_made_of(kind, options):
    assert difference(decode(file_of(PICTURE, kind, **options)), PICTURE) < 48


def animation(kind: str) -> bytes:
    frames = [Image.new("RGB", SIZE, colour) for colour in ("red", "green", "blue")]
    data = file_of(frames[0], kind, save_all=True, append_images=frames[1:], duration=50)
    assert Image.open(io.BytesIO(data)).n_frames == 3
    return data


def test_of_an_animated_gif_the_first_frame_is_taken():
    assert difference(decode(animation("GIF")), Image.new("RGB", SIZE, "red")) == 0


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_another_animation_is_refused(kind):
    assert f"the {kind} file is animated; send a still image" in refusal(animation(kind))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_pictures_are_turned_as_their_exif_says(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"PNG": {}, "JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}[kind]
    picture = decode(file_of(PICTURE, kind, exif=exif, **options))
    turned = {
        1: lambda image: image,
        2: ImageOps.mirror,
        3: lambda image: image.rotate(180),
        4: ImageOps.flip,
        5: lambda image: ImageOps.mirror(image.rotate(-90, expand=True)),
        6: lambda image: image.rotate(-90, expand=True),
        7: lambda image: ImageOps.mirror(image.rotate(90, expand=True)),
        8: lambda image: image.rotate(90, expand=True),
    }[orientation](PICTURE)
    assert difference(picture, turned) < (48 if kind == "JPEG" else 1)


def test_palettes_greys_and_single_bits_become_three_colours():
    grey = PICTURE.convert("L")
    assert difference(decode(file_of(grey, "PNG")), grey.convert("RGB")) == 0
    bits = PICTURE.convert("1")
    assert difference(decode(file_of(bits, "PNG")), bits.convert("RGB")) == 0
    palette = PICTURE.quantize(16)
    assert difference(decode(file_of(palette, "PNG")), palette.convert("RGB")) == 0
    assert difference(decode(file_of(grey, "JPEG", quality=95)), grey.convert("RGB")) < 16


def test_sixteen_bits_of_grey_are_as_bright_as_eight():
    grey = PICTURE.convert("L")
    deep = Image.frombytes("I;16", SIZE, b"".join(struct.pack("<H", 257 * value) for value in grey.tobytes()))
    assert difference(decode(file_of(deep, "PNG")), grey.convert("RGB")) <= 1


def test_the_four_colours_of_print_become_three():
    printed = PICTURE.convert("CMYK")
    assert difference(decode(file_of(printed, "JPEG", quality=95, subsampling=0)), PICTURE) < 48


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_white(mode):
    picture = Image.new("RGBA", SIZE, (255, 0, 0, 0))
    picture.paste((0, 0, 0, 255), (0, 0, 20, 24))
    if mode == "P":
        data = file_of(picture.convert("P"), "GIF", transparency=picture.convert("P").getpixel((30, 10)))
    else:
        data = file_of(picture.convert(mode), "PNG")
    decoded = decode(data)
    assert decoded.mode == "RGB"
    assert decoded.getpixel((5, 5)) == (0, 0, 0)
    assert decoded.getpixel((30, 10)) == (255, 255, 255)


def test_half_transparent_pixels_are_mixed_with_white():
    decoded = decode(file_of(Image.new("RGBA", SIZE, (255, 0, 0, 128)), "PNG"))
    assert all(abs(a - b) <= 1 for a, b in zip(decoded.getpixel((3, 3)), (255, 127, 127), strict=True))


OTHERS = {
    "nothing": b"",
    "text": b"a picture of a cat",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>',
    "html": b"<!doctype html><title>404</title>",
    "tiff": file_of(PICTURE, "TIFF"),
    "bmp": file_of(PICTURE, "BMP"),
    "ico": file_of(PICTURE, "ICO"),
    "ppm": file_of(PICTURE, "PPM"),
    "eps": file_of(PICTURE, "EPS"),
    "zeros": bytes(4096),
    "signature of a png alone": b"\x89PNG\r\n\x1a\n",
    "signature of a jpeg alone": b"\xff\xd8\xff\xe0",
    "tiff behind the signature of a png": b"\x89PNG\r\n\x1a\n" + file_of(PICTURE, "TIFF"),
    "video": b"\x00\x00\x00\x20ftypisom\x00\x00\x02\x00isomiso2avc1mp41",
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_image_of_the_four_kinds_is_refused(name):
    assert "PNG, JPEG, WebP or GIF" in refusal(OTHERS[name])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
@pytest.mark.parametrize("part", [0.3, 0.5, 0.7, 0.9])
def test_a_file_that_ends_too_early_is_refused(kind, part):
    whole = file_of(Image.open(io.BytesIO(png("noise", (60, 60)))), kind)
    refusal(whole[: int(len(whole) * part)])


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it has so many pixels."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(101, 100), (10_000, 10_000), (2, 5001)])
def test_more_pixels_than_allowed_are_refused_before_they_are_decoded(size):
    assert f"{size[0]} x {size[1]} pixels, at most 10000 are taken (images.max_pixels)" in refusal(bomb(*size))


@pytest.mark.parametrize("size", [(60_000, 60_000), (2**31 - 1, 2**31 - 1), (1, 2**31 - 1)])
def test_more_pixels_than_pillow_takes_are_refused_like_others(size):
    assert "too many pixels, at most 10000 are taken (images.max_pixels)" in refusal(bomb(*size))
    assert "at most 178956970 are taken" in refusal(bomb(*size), 10**12)


def test_as_many_pixels_as_allowed_are_taken():
    assert decode(file_of(Image.new("RGB", (100, 100)), "PNG")).size == (100, 100)
    assert decode(LOSSLESS["png"], 40 * 24).size == SIZE
    assert "at most 959" in refusal(LOSSLESS["png"], 40 * 24 - 1)


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (3, 3000), (3000, 3)])
def test_a_side_that_could_be_taken_for_the_colours_is_refused(size):
    assert "each side needs 4 or more" in refusal(file_of(Image.new("RGB", size), "PNG"))


def test_large_pictures_that_are_allowed_make_no_warning_of_pillows(recwarn):
    # more than the number from which Pillow warns; there is no data behind it
    assert "the image is broken" in refusal(bomb(9500, 9500), 10**8)
    assert not recwarn.list


@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12", b"Exif\0\0"])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_a_broken_orientation_is_none(exif):
    assert decode(file_of(PICTURE, "JPEG", exif=exif)).size == SIZE


def test_an_image_has_the_digest_of_its_pixels_and_of_its_size():
    pictures = [Image.new("RGB", size) for size in ((10, 20), (20, 10), (200, 1))]
    assert len({picture.tobytes() for picture in pictures}) == 1
    assert len({image_digest(picture) for picture in pictures}) == 3
    assert image_digest(PICTURE) == image_digest(PICTURE.copy())


FILES = [
    *LOSSLESS.values(),
    file_of(PICTURE, "JPEG"),
    file_of(PICTURE, "GIF"),
    file_of(PICTURE.quantize(8), "PNG", transparency=1),
    file_of(PICTURE, "WEBP", save_all=True, append_images=[PICTURE.rotate(180)]),
    file_of(PICTURE.convert("CMYK"), "JPEG"),
]
CHANGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(FILES), CHANGES, st.floats(0.1, 1))
@example(FILES[0], [(0.0, 0)], 1.0)
def test_a_damaged_file_is_decoded_or_refused_and_nothing_else_happens(file, changes, part):
    damaged = bytearray(file[: int(len(file) * part)])
    for place, value in changes:
        damaged[int(place * len(damaged))] = value
    picture = decoded_or_refused(bytes(damaged))
    if picture is not None:
        assert picture.mode == "RGB"
        assert 16 <= picture.width * picture.height <= MOST


def decoded_or_refused(data: bytes) -> Image.Image | None:
    try:
        return decode(data)
    except InvalidRequest as refused:
        if refused.param != PARAM:
            raise
        return None


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data):
    refusal(data)
    refusal(hashlib.sha256(data).digest() + data)


def test_images_of_one_prompt_share_a_bound_of_pixels_and_equal_files_count_once():
    red, blue = (file_of(Image.new("RGB", (10, 10), colour), "PNG") for colour in ("red", "blue"))
    images = [ImageInput(data, f"p{number}", 250) for number, data in enumerate((red, blue, red, blue))]
    assert [picture.getpixel((0, 0)) for picture in decode_images(images)] == [(255, 0, 0), (0, 0, 255)] * 2
    over = [*images, ImageInput(file_of(Image.new("RGB", (10, 6), "green"), "PNG"), "p4", 250)]
    with pytest.raises(InvalidRequest, match="10 x 6 pixels and those before it 200, at most 250") as refused:
        decode_images(over)
    assert refused.value.param == "p4"
