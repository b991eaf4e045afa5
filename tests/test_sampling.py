"""Samplers and processors of one row, alone and in real batches."""

import asyncio
import json
import time
from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from engine_harness import chat, collect, engine_on, lane_pool
from mlx_lm import load
from mlx_lm.generate import BatchGenerator
from mlx_lm.sample_utils import apply_min_p, apply_top_p, apply_xtc
from tiny_models import build_tiny_model, cached

from mlxd.engines.errors import GuideError
from mlxd.engines.row_faults import RowFault
from mlxd.engines.sampling import MinTokens, row_options, row_sampler, spared_tokens
from mlxd.engines.sampling_filters import exclude_top_choices, keep_min_p, keep_top_p
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import FinishReason, Guide, GuideKind, Request, SamplingParams


@pytest.fixture(scope="module")
def model(tiny_model):
    return load(tiny_model)


@pytest.fixture(scope="module")
def tokenizer(model) -> Tokenizer:
    return Tokenizer(model[1])


def logprobs_of(*rows) -> mx.array:
    return mx.log(mx.array(rows))


FOUR = [0.5, 0.3, 0.15, 0.05]


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.79, 0.95, 0.999])
def test_top_p_keeps_what_mlx_lm_keeps(top_p):
    logits = mx.random.normal((4, 500), key=mx.random.key(1))
    logits[1, 100:] = -mx.inf
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    assert mx.array_equal(keep_top_p(logprobs, top_p), apply_top_p(logprobs, mx.array(top_p)))


def test_top_p_always_keeps_a_token():
    kept = keep_top_p(logprobs_of(FOUR), 1e-6)
    assert np.isfinite(np.array(kept)).sum() == 1


def test_min_p_keeps_what_mlx_lm_keeps():
    logprobs = mx.log(mx.softmax(mx.random.normal((4, 500), key=mx.random.key(1)), axis=-1))
    assert mx.array_equal(keep_min_p(logprobs, 0.1), apply_min_p(logprobs, 0.1))


def test_xtc_drops_what_mlx_lm_drops():
    logprobs = logprobs_of(FOUR, FOUR[::-1], [0.25] * 4, [0.97, 0.01, 0.01, 0.01])
    draws = mx.zeros((4, 1))
    ours = exclude_top_choices(logprobs, draws, 1.0, 0.1, ())
    theirs = apply_xtc(logprobs, 1.0, 0.1, [])
    assert mx.array_equal(ours, theirs)


def test_xtc_takes_the_top_choices_but_the_last_of_them():
    kept = exclude_top_choices(logprobs_of(FOUR), mx.zeros((1, 1)), 1.0, 0.1, ())
    assert np.isfinite(np.array(kept)).tolist() == [[False, False, True, True]]


def test_xtc_never_takes_spared_tokens():
    kept = exclude_top_choices(logprobs_of(FOUR), mx.zeros((1, 1)), 1.0, 0.1, (0, 3))
    assert np.isfinite(np.array(kept)).tolist() == [[True, False, True, True]]


def test_xtc_decides_for_each_row_by_itself():
    mx.random.seed(3)
    rows = logprobs_of(*[[0.9, 0.1 - 2e-6, 1e-6, 1e-6]] * 2000)
    # with a threshold below 0.1 both first tokens are top choices, so where XTC decides so the first one is out
    sampler = row_sampler(SamplingParams(xtc_probability=0.5, xtc_threshold=0.05), 4)
    first = float((sampler(rows) == 0).mean())
    assert 0.40 < first < 0.50


def test_xtc_spares_line_breaks_and_end_tokens(tokenizer):
    assert set(spared_tokens(SamplingParams(xtc_probability=0.1), tokenizer)) == {*tokenizer.encode("\n"), 2}
    assert spared_tokens(SamplingParams(), tokenizer) == ()


def test_spared_tokens_beyond_the_vocabulary_are_left_out():
    sampler = row_sampler(SamplingParams(xtc_probability=1.0), 4, (1, 10**6))
    assert sampler(logprobs_of(FOUR)).tolist()[0] in (1, 2, 3)


def test_equal_settings_share_a_sampler_and_seeded_rows_have_their_own():
    shared = SamplingParams(temperature=0.7, top_p=0.9, xtc_probability=0.2)
    assert row_sampler(shared, 100) is row_sampler(shared, 100)
    seeded = SamplingParams(temperature=0.7, seed=1)
    assert row_sampler(seeded, 100) is not row_sampler(seeded, 100)
    assert row_sampler(SamplingParams(temperature=0), 100) is row_sampler(SamplingParams(temperature=0, seed=1), 100)


@pytest.mark.parametrize("options", [{}, {"xtc_probability": 0.5}, {"top_p": 0.8, "min_p": 0.01, "top_k": 40}])
def test_a_seeded_row_draws_the_same_numbers_again(options):
    logprobs = mx.log(mx.softmax(mx.random.normal((1, 500), key=mx.random.key(1)), axis=-1))
    one, other = (row_sampler(SamplingParams(seed=5, **options), 500) for _ in range(2))
    drawn = [one(logprobs).item() for _ in range(40)]
    mx.random.seed(99)
    assert [other(logprobs).item() for _ in range(40)] == drawn
    assert len(set(drawn)) > 5


def test_a_sampler_draws_from_the_tempered_distribution():
    rows = logprobs_of(*[FOUR] * 20_000)
    mx.random.seed(0)
    drawn = np.bincount(np.array(row_sampler(SamplingParams(temperature=0.5), 4)(rows)), minlength=4) / 20_000
    expected = np.array(FOUR) ** 2 / (np.array(FOUR) ** 2).sum()
    assert np.abs(drawn - expected).max() < 0.02


def test_min_tokens_masks_end_tokens_and_no_others():
    process = MinTokens(2, frozenset({1, 3, 10**6}), prompt_tokens=3)
    for length, masked in ((3, [1, 3]), (4, [1, 3]), (5, [])):
        logits = process(mx.zeros(length, dtype=mx.int32), mx.zeros((1, 6)))
        assert np.flatnonzero(np.isinf(np.array(logits))[0]).tolist() == masked


def test_min_tokens_leaves_end_tokens_where_nothing_else_is_allowed():
    logits = mx.full((1, 6), -mx.inf)
    logits[:, 3] = 1.0
    assert mx.array_equal(MinTokens(9, frozenset({3}), 0)(mx.zeros(1, dtype=mx.int32), logits), logits)


def request(sampling: SamplingParams, *prompt: int) -> Request:
    return Request("r", prompt or (5, 6, 7), sampling)


def run(model, tokenizer, rows, faults=None, steps=12):
    """Decode requests as one batch: for each row its tokens, its logprobs and its finish reason."""
    generator = BatchGenerator(model[0], stop_tokens=[[2]])
    faults = faults or [RowFault() for _ in rows]
    uids = [
        generator.insert([list(row.prompt)], max_tokens=[steps], **row_options(row, tokenizer, 2048, fault))[0]
        for row, fault in zip(rows, faults, strict=True)
    ]
    tokens, logprobs, reasons = ({uid: [] for uid in uids} for _ in range(3))
    while len(generator._unprocessed_sequences) + len(generator._prompt_batch) + len(generator._generation_batch):
        for response in generator.next()[1]:
            tokens[response.uid].append(response.token)
            logprobs[response.uid].append(np.array(response.logprobs))
            reasons[response.uid].append(response.finish_reason)
    return [(tokens[uid], logprobs[uid], reasons[uid][-1]) for uid in uids]


def test_free_rows_are_bit_exactly_what_they_are_beside_free_rows(model, tokenizer):
    # too long to end within the run: a smaller batch would round otherwise
    guide = Guide(GuideKind.JSON_SCHEMA, '{"type":"array","items":{"type":"integer"},"minItems":20}')
    free = [request(SamplingParams(temperature=1.0, seed=seed), 5 + seed, 6, 7) for seed in range(3)]
    others = [request(SamplingParams(temperature=1.0, seed=seed), 9 + seed, 6, 7) for seed in range(2)]
    guided = [request(SamplingParams(temperature=1.0, seed=seed, guide=guide), 9 + seed, 6, 7) for seed in range(2)]
    beside_free, beside_guided = run(model, tokenizer, free + others), run(model, tokenizer, free + guided)
    for (tokens, logprobs, _), (other_tokens, other_logprobs, _) in zip(
        beside_free[:3], beside_guided[:3], strict=True
    ):
        assert tokens == other_tokens
        assert all(np.array_equal(a, b) for a, b in zip(logprobs, other_logprobs, strict=True))
    assert beside_free[3][0] != beside_guided[3][0]


def test_a_guided_rows_logprobs_have_no_probability_outside_of_the_guide(model, tokenizer):
    guide = Guide(GuideKind.REGEX, "[ab]{8}")
    ((tokens, logprobs, reason),) = run(
        model, tokenizer, [request(SamplingParams(temperature=1.0, seed=1, guide=guide))]
    )
    assert reason == "stop"
    assert set(b"".join(tokenizer.token_bytes(token) for token in tokens[:-1])) <= set(b"ab")
    for row in logprobs:
        assert np.exp(row).sum() == pytest.approx(1, abs=1e-4)
        assert np.isinf(row).sum() > 2000


class Broken:
    """A processor or sampler that fails at its nth call."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, *arrays):
        self.left -= 1
        if self.left == 0:
            arrays[-1][:] = -mx.inf
            raise GuideError("the guide cannot be followed")
        return arrays[-1] if len(arrays) > 1 else mx.argmax(arrays[0], axis=-1)


@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_processor_that_raises_fails_its_row_alone_and_leaves_the_logits(model, tokenizer, at):
    rows = [request(SamplingParams(temperature=0), 5 + n, 6, 7) for n in range(3)]
    expected = run(model, tokenizer, rows)
    fault = RowFault()
    generator = BatchGenerator(model[0], stop_tokens=[[2]])
    options = [row_options(row, tokenizer, 2048, RowFault()) for row in rows]
    options[1]["logits_processors"] = [[fault.processor(Broken(at))]]
    uids = [
        generator.insert([list(row.prompt)], max_tokens=[12], **each)[0]
        for row, each in zip(rows, options, strict=True)
    ]
    tokens = {uid: [] for uid in uids}
    for _ in range(40):
        for response in generator.next()[1]:
            tokens[response.uid].append(response.token)
            assert np.isfinite(np.array(response.logprobs)).all()
    assert isinstance(fault.error, GuideError)
    assert fault.error.__traceback__ is None
    assert [tokens[uid] for uid in uids] == [row[0] for row in expected]


def test_a_sampler_that_raises_fails_its_row_alone(model, tokenizer):
    rows = [request(SamplingParams(temperature=0), 5 + n, 6, 7) for n in range(2)]
    expected = run(model, tokenizer, rows)
    fault = RowFault()
    generator = BatchGenerator(model[0], stop_tokens=[[2]])
    options = [row_options(row, tokenizer, 2048) for row in rows]
    options[0]["samplers"] = [fault.sampler(Broken(3))]
    uids = [
        generator.insert([list(row.prompt)], max_tokens=[12], **each)[0]
        for row, each in zip(rows, options, strict=True)
    ]
    tokens = {uid: [] for uid in uids}
    for _ in range(40):
        for response in generator.next()[1]:
            tokens[response.uid].append(response.token)
    assert isinstance(fault.error, GuideError)
    assert tokens[uids[1]] == expected[1][0]
    assert len(tokens[uids[0]]) == 12


def test_the_first_fault_counts_and_nothing_runs_after_it():
    fault = RowFault()
    seen = []

    def raising(tokens, logits):
        raise ValueError("first")

    def noting(tokens, logits):
        seen.append(tokens)
        return logits

    logits = mx.zeros((1, 4))
    for process in (fault.processor(raising), fault.processor(noting), fault.processor(raising)):
        assert process(mx.array([1]), logits) is logits
    assert str(fault.error) == "first"
    assert not seen


# Nearly equal logits, so that parameters show; its end token is as likely as others.
@pytest.fixture(scope="module")
def flat_model():
    return cached("flat-micro", partial(build_tiny_model, size="micro", final_norm=0.02))


ALWAYS_END = {2: 100.0}


async def test_min_tokens_holds_the_end_back(flat_model):
    async with lane_pool() as lanes, engine_on(flat_model, lanes) as engine:
        for count in (0, 1, 7):
            sampling = SamplingParams(max_tokens=30, seed=1, min_tokens=count, logit_bias=ALWAYS_END)
            answer = await collect(engine, chat(engine, "go", sampling))
            assert answer[-1].usage.completion_tokens == count + 1
            assert answer[-1].finish_reason is FinishReason.STOP


async def test_a_row_that_ignores_its_end_runs_to_its_limit_and_shows_no_end_token(flat_model):
    async with lane_pool() as lanes, engine_on(flat_model, lanes) as engine:
        ignoring = SamplingParams(max_tokens=30, seed=1, ignore_eos=True, logit_bias=ALWAYS_END)
        ending = SamplingParams(max_tokens=30, seed=1, logit_bias=ALWAYS_END)
        answers = await asyncio.gather(*(collect(engine, chat(engine, "go", each)) for each in (ignoring, ending)))
        ignored, ended = ((a[-1].usage.completion_tokens, a[-1].finish_reason) for a in answers)
        assert ignored == (30, FinishReason.LENGTH)
        assert ended == (1, FinishReason.STOP)
        assert "".join(output.text for output in answers[0]) == ""


@pytest.mark.parametrize("options", [{"xtc_probability": 0.5, "xtc_threshold": 0.001}, {"top_p": 0.7, "top_k": 50}])
async def test_a_seeded_answer_does_not_depend_on_its_neighbours(flat_model, options):
    async with lane_pool() as lanes, engine_on(flat_model, lanes) as engine:
        own = SamplingParams(max_tokens=20, seed=7, **options)
        alone = await collect(engine, chat(engine, "go", own))
        guide = Guide(GuideKind.JSON_SCHEMA, json.dumps({"type": "array", "items": {"type": "boolean"}}))
        neighbours = [
            SamplingParams(max_tokens=30, **options),
            SamplingParams(max_tokens=30, guide=guide),
            SamplingParams(max_tokens=30, seed=8, **options),
        ]
        answers = await asyncio.gather(*(collect(engine, chat(engine, "go", each)) for each in (own, *neighbours)))
        assert "".join(o.text for o in answers[0]) == "".join(o.text for o in alone)


async def test_values_that_differ_between_requests_are_not_compiled_anew(flat_model):
    # values that no run before has had: compiled kernels are kept on disk, and one takes about a second
    new = time.time() % 1 / 1000
    async with lane_pool() as lanes, engine_on(flat_model, lanes) as engine:
        async with asyncio.timeout(40):
            for number in range(64):
                step = new + number / 1009
                sampling = SamplingParams(
                    max_tokens=2,
                    temperature=0.5 + step,
                    top_p=0.5 + step,
                    min_p=0.01 + step,
                    xtc_probability=0.1 + step,
                )
                await collect(engine, chat(engine, "go", sampling))
