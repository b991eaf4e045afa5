"""Which waiting prompt starts next: in order, but long ones hold no short ones up, and like ones share their work."""

from dataclasses import replace
from pathlib import Path

from fake_runner import FakePrefixes, FakeRunner
from hypothesis import given
from hypothesis import strategies as st

from mlxd.engines.admission import Admission
from mlxd.engines.backend import Admitted
from mlxd.engines.prompt_images import PreparedImage, PromptImages
from mlxd.engines.sequence import Sequence
from mlxd.engines.types import EngineConfig, Request, RequestState, SamplingParams


def sequence(name: str, prompt: int, start: int = 0) -> Sequence:
    return Sequence(Request(name, tuple(range(start, start + prompt)), SamplingParams()), 0.0, max_tokens=10)


def started(name: str, prompt: int, start: int = 0, *, decoding: bool = False) -> Sequence:
    one = sequence(name, prompt, start)
    one.admit(Admitted(1), None, 0.0)
    if decoding:
        one.state = RequestState.DECODING
    return one


def pick(waiting, running=(), runner=None, **options) -> str | None:
    config = EngineConfig("m", Path("m"), 10_000, **options)
    chosen = Admission(runner or FakeRunner(short_prompt=100), config).next(waiting, running)
    return None if chosen is None else chosen.request.id


def test_prompts_start_in_order_of_arrival():
    assert pick([sequence("a", 10), sequence("b", 5)]) == "a"
    assert pick([sequence("long", 5000), sequence("short", 5)]) == "long"


def test_a_short_prompt_passes_a_long_one_that_waits_for_another_long_one():
    waiting = [sequence("long", 5000), sequence("short", 50)]
    assert pick(waiting, [started("first", 4000)]) == "short"
    assert pick(waiting[:1], [started("first", 4000)]) is None


def test_a_long_prompt_starts_beside_short_ones_and_beside_decoding_ones():
    assert pick([sequence("long", 5000)], [started("short", 50)]) == "long"
    assert pick([sequence("long", 5000)], [started("old", 4000, decoding=True)]) == "long"


def test_a_long_prompt_that_is_cached_is_a_short_one():
    waiting = [sequence("long", 5000)]
    runner = FakeRunner(short_prompt=100, prefixes=FakePrefixes(cached={waiting[0].request.prompt: 4950}))
    assert pick(waiting, [started("first", 4000, start=9000)], runner) == "long"


def test_however_many_read_the_disk_one_behind_them_starts():
    waiting = [sequence(str(number), 10) for number in range(100)]
    for one in waiting[:-1]:
        one.awaits_prefix = True
    assert pick(waiting) == "99"


def test_no_more_prompts_prefill_together_than_configured():
    running = [started(str(number), 10) for number in range(3)]
    assert pick([sequence("a", 10)], running, prefill_batch=3) is None
    assert pick([sequence("a", 10)], running, prefill_batch=4) == "a"
    running[0].state = RequestState.DECODING
    assert pick([sequence("a", 10)], running, prefill_batch=3) == "a"


def with_images(one: Sequence) -> Sequence:
    image = PreparedImage(b"digest", 1, {})
    one.request = replace(one.request, images=PromptImages([image], one.request.prompt[0], len(one.request.prompt), {}))
    return one


def test_text_passes_prompts_with_images_that_have_half_of_the_places():
    running = [with_images(started(str(number), 10)) for number in range(4)]
    waiting = [with_images(sequence(f"image {number}", 10)) for number in range(100)]
    text = sequence("text", 10)
    assert pick([*waiting, text], running) == "text"
    assert pick(waiting, running) is None
    assert pick([*waiting, text], running[1:]) == "image 0"
    running[0].state = RequestState.DECODING
    assert pick([*waiting, text], running) == "image 0"
    assert pick(waiting, prefill_batch=1) == "image 0"


def test_no_more_rows_run_than_configured():
    assert pick([sequence("a", 10)], [started("b", 10, decoding=True)], max_running=1) is None


def test_a_prompt_waits_for_the_cache_of_one_like_it():
    runner = FakeRunner(short_prompt=1000, prefixes=FakePrefixes(shares=True))
    assert pick([sequence("a", 500)], [started("b", 400)], runner) is None
    assert pick([sequence("a", 500), sequence("other", 10, start=90)], [started("b", 400)], runner) == "other"


def test_a_prompt_does_not_wait_for_a_long_one_of_which_it_shares_little():
    runner = FakeRunner(short_prompt=1000, prefixes=FakePrefixes(shares=True))
    assert pick([sequence("a", 100)], [started("b", 900)], runner) == "a"


def test_a_prompt_does_not_wait_for_what_is_cached_already():
    waiting = [sequence("a", 500)]
    runner = FakeRunner(short_prompt=1000, prefixes=FakePrefixes(shares=True, cached={waiting[0].request.prompt: 380}))
    assert pick(waiting, [started("b", 400)], runner) == "a"


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 3000), st.booleans()), max_size=6),
)
def test_nothing_waits_while_nothing_is_prefilled(waiting, running):
    rows = [started(str(number), length, decoding=True) for number, (length, _) in enumerate(running)]
    assert pick([sequence(f"w{n}", length) for n, length in enumerate(waiting)], rows) == "w0"


def test_a_prompt_that_waits_for_the_disk_lets_others_pass():
    waiting = [sequence("disk", 10), sequence("other", 10)]
    waiting[0].awaits_prefix = True
    assert pick(waiting) == "other"
    assert pick(waiting[:1]) is None
