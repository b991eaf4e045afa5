"""What stands for images where prompts are compared, and what is kept of images: rules that hold for all of them."""

from __future__ import annotations

from itertools import accumulate

import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import KVCache

from mlxd.engines.cache_layers import CacheShape
from mlxd.engines.kept_features import KeptVision
from mlxd.engines.kept_prefixes import PrefixLimits
from mlxd.engines.prompt_images import PreparedImage, PromptImages, image_keys
from mlxd.engines.token_arrays import token_array, usable_length
from mlxd.engines.vision_rows import ImageFeatures

PAD = 7  # the token of images
DIGESTS = [bytes([number]) * 32 for number in range(4)]
# A prompt is made of text, which a number stands for, and images, which a digest does with how many tokens it takes.
PARTS = st.lists(
    st.one_of(st.integers(8, 11), st.tuples(st.sampled_from(DIGESTS), st.integers(1, 5))), min_size=1, max_size=8
)


def prompt_of(parts) -> tuple[list[int], PromptImages]:
    """The tokens of such a prompt, and its images."""
    tokens, images = [], []
    for part in parts:
        if isinstance(part, int):
            tokens.append(part)
            continue
        digest, count = part
        tokens += [PAD] * count
        images.append(PreparedImage(digest, count, {}))
    return tokens, PromptImages(images, PAD, len(tokens), {})


def insides(parts) -> set[int]:
    """The lengths at which a prompt would be cut within an image."""
    lengths = [1 if isinstance(part, int) else part[1] for part in parts]
    return {
        end - back
        for part, length, end in zip(parts, lengths, accumulate(lengths), strict=True)
        if not isinstance(part, int)
        for back in range(1, length)
    }


@given(st.binary(min_size=1, max_size=32), st.integers(1, 300))
def test_keys_are_negative_and_only_the_first_of_an_image_is_even(digest, tokens):
    keys = image_keys(digest, tokens)
    assert keys.dtype == np.int32
    assert (keys < 0).all()
    assert (keys & 1).tolist() == [0] + [1] * (tokens - 1)
    assert keys[: tokens // 2].tolist() == image_keys(digest, tokens // 2).tolist()


@given(st.binary(min_size=1, max_size=32), st.binary(min_size=1, max_size=32))
def test_other_images_have_other_keys_from_the_first_on(first, second):
    same = image_keys(first, 8) == image_keys(second, 8)
    assert same.all() if first == second else not same.any()


@given(PARTS)
def test_only_the_places_of_images_get_keys_and_each_image_its_own(parts):
    tokens, images = prompt_of(parts)
    keyed = images.keyed(token_array(tokens)) if images.images else token_array(tokens)
    assert [token for token in keyed.tolist() if token >= 0] == [part for part in parts if isinstance(part, int)]
    wanted = [key for image in images.images for key in image_keys(image.digest, image.tokens).tolist()]
    assert [token for token in keyed.tolist() if token < 0] == wanted
    assert images.tokens == PromptImages.tokens_in(keyed) == len(wanted)


@given(PARTS, st.integers(0, 40), st.lists(st.sampled_from([PAD, 8]), max_size=3))
def test_a_beginning_of_a_prompt_has_the_same_keys_and_generated_tokens_have_none(parts, length, generated):
    tokens, images = prompt_of(parts)
    if not images.images:
        return
    keyed = images.keyed(token_array(tokens))
    assert images.keyed(token_array(tokens[:length])).tolist() == keyed[:length].tolist()
    assert images.keyed(token_array([*tokens, *generated])).tolist() == [*keyed.tolist(), *generated]


@given(PARTS, st.integers(0, 40))
def test_the_tail_of_images_are_those_with_a_place_that_is_left(parts, done):
    tokens, images = prompt_of(parts)
    held = PromptImages.tokens_in(images.keyed(token_array(tokens))[:done]) if images.images else 0
    ends = list(accumulate(image.tokens for image in images.images))
    assert list(images.tail(held)) == [image for image, end in zip(images.images, ends, strict=True) if end > held]


@settings(max_examples=300)
@given(PARTS, PARTS, PARTS, st.integers(0, 40), st.booleans())
def test_a_kept_prefix_serves_what_is_the_same_and_is_never_cut_within_an_image(common, held, asked, end, trimmable):
    (first, images), (second, others) = prompt_of([*common, *held]), prompt_of([*common, *asked])
    first_keys = (images.keyed(token_array(first)) if images.images else token_array(first))[: end or None]
    second_keys = others.keyed(token_array(second)) if others.images else token_array(second)
    length = usable_length(first_keys, second_keys, trimmable=trimmable)
    assert 0 <= length < len(second)
    assert first_keys[:length].tolist() == second_keys[:length].tolist()
    if length == len(first_keys):
        return
    # what is kept has to be cut
    assert trimmable or length == 0
    assert length not in insides([*common, *asked])
    longer = range(length + 1, min(len(first_keys), len(second) - 1) + 1)
    fitting = [n for n in longer if first_keys[:n].tolist() == second_keys[:n].tolist()]
    if trimmable:
        assert set(fitting) <= insides([*common, *asked])


UNIT = 1600  # bytes
BUDGET = 100 * UNIT


def features_of(units: int) -> ImageFeatures:
    return ImageFeatures(mx.zeros((1, UNIT * units // 4)))


def layers_of(units: int) -> list[KVCache]:
    cache = KVCache()
    # 20 tokens, two arrays of single precision
    cache.update_and_fetch(*(mx.zeros((1, 1, 20, UNIT * units // 160)) for _ in range(2)))
    cache.state = (*(array[..., :20, :] for array in cache.state[:2]), 20)
    return [cache]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("features"), st.integers(0, 7), st.integers(1, 120)),
        st.tuples(st.just("prefix"), st.integers(0, 7), st.integers(1, 120)),
        st.tuples(st.just("trim"), st.integers(0, 120), st.integers(0, 7)),
        st.tuples(st.just("look"), st.integers(0, 7), st.just(0)),
        st.tuples(st.just("drop"), st.integers(0, 7), st.just(0)),
        st.tuples(st.just("spare"), st.integers(0, 120), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(OPERATIONS)
def test_features_and_prefixes_never_take_more_than_their_budget_together(operations):
    kept = KeptVision(PrefixLimits(BUDGET, 0), CacheShape())
    spare = [None]
    kept.use_headroom(lambda: spare[0])
    rows: dict[bytes, ImageFeatures] = {}
    for name, first, second in operations:
        digest, before = bytes([first]) * 32, kept.nbytes
        match name:
            case "features":
                if kept.features(digest) is None:
                    rows[digest] = features_of(second)
                    kept.put_features(digest, rows[digest])
                    assert kept.features(digest) is rows[digest]
            case "prefix":
                kept.keep(layers_of(second), [first] * 20)
            case "trim":
                assert kept.trim(UNIT * first, [second] * 20) == before - kept.nbytes
                spared = kept.cached_tokens([second] * 20)
                assert kept.nbytes <= UNIT * first or (spared and kept.features_nbytes == 0)
            case "look":
                assert digest not in rows or kept.features(digest) is rows[digest]
            case "drop":
                rows.pop(digest, None)
            case "spare":
                spare[0] = UNIT * first if first < 100 else None
        assert kept.nbytes <= BUDGET
        assert 0 <= kept.features_nbytes <= kept.nbytes
        alive = {digest: kept.features(digest) for digest in [bytes([n]) * 32 for n in range(8)]}
        assert set(rows) <= {digest for digest, one in alive.items() if one is not None}
        held = sum(one.nbytes for one in alive.values() if one is not None)
        assert held == kept.features_nbytes + kept.unkept_nbytes
        del alive
    kept.close(0)
    assert kept.nbytes == 0
    rows.clear()
    assert kept.unkept_nbytes == 0


def test_prefixes_leave_features_their_share_and_features_leave_prefixes_the_rest():
    kept = KeptVision(PrefixLimits(BUDGET, 0), CacheShape())
    for number in range(8):
        kept.put_features(bytes([number]) * 32, features_of(20))
    assert kept.features_nbytes == BUDGET
    for number in range(10):
        kept.keep(layers_of(16), [number] * 20)
    assert kept.features_nbytes == 20 * UNIT  # a quarter at most
    assert kept.nbytes == 20 * UNIT + 5 * 16 * UNIT


def test_an_image_that_takes_more_than_its_share_is_not_kept():
    kept = KeptVision(PrefixLimits(BUDGET, 0), CacheShape())
    features = features_of(26)
    kept.put_features(DIGESTS[0], features)
    assert (kept.nbytes, kept.unkept_nbytes) == (0, 26 * UNIT)
    assert kept.features(DIGESTS[0]) is features
    del features
    assert (kept.features(DIGESTS[0]), kept.unkept_nbytes) == (None, 0)
