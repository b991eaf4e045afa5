"""Sampling values: whose count, and what 32-bit floats can tell."""

import pytest

from mlxd.daemon.api.openai.parsing import parse_chat
from mlxd.daemon.api.sampling import sampling_params
from mlxd.daemon.settings import EngineSettings, ModelSettings, PresetSettings, SamplingSettings, Settings
from mlxd.registry.names import Resolved

USER = {"role": "user", "content": "hi"}


def chat(**fields):
    return parse_chat({"messages": [USER], **fields})


@pytest.mark.parametrize(
    ("seed", "taken"), [(0, 0), (7, 7), (-1, 2**64 - 1), (-(2**63), 2**63), (2**64 - 1, 2**64 - 1)]
)
def test_a_seed_of_64_bits_is_taken_as_its_bit_pattern(seed, taken):
    assert chat(seed=seed).options.sampling.seed == taken


def test_sampling_fields_arrive_typed():
    options = chat(
        temperature=1, top_k=3, stop="x", logit_bias={"5": 1, "07": -100}, stream=True,
        stream_options={"include_usage": True}, max_completion_tokens=9,
    ).options  # fmt: skip
    assert options.sampling == SamplingSettings(temperature=1.0, top_k=3, stop=("x",), max_tokens=9)
    assert options.logit_bias == {5: 1.0, 7: -100.0}
    assert (options.stream, options.include_usage) == (True, True)


def test_equal_token_limits_are_one_limit():
    assert chat(max_tokens=5, max_completion_tokens=5).options.sampling.max_tokens == 5


ENTRY = ModelSettings(
    "m",
    sampling=SamplingSettings(temperature=0.7, top_p=0.9, stop=("END",), max_tokens=40),
    presets=(PresetSettings("cold", SamplingSettings(temperature=0.0)),),
)
SETTINGS = Settings(model=(ENTRY,), engine=EngineSettings(max_tokens=60))


def params(preset=None, model="m", room=1000, settings=SETTINGS, **fields):
    return sampling_params(settings, Resolved(model, preset), chat(**fields).options, room)


def test_a_request_wins_over_its_preset_the_preset_over_the_model_and_the_model_over_the_daemon():
    assert params().temperature == 0.7
    assert params("cold").temperature == 0.0
    assert params("cold").top_p == 0.9
    assert params("cold", temperature=0.3).temperature == 0.3
    assert params(model="other").temperature == 1.0
    assert params(model="other").top_p == 1.0
    assert (params().max_tokens, params(model="other").max_tokens) == (40, 60)
    assert params(max_tokens=7).max_tokens == 7
    assert params(settings=Settings()).max_tokens is None


def test_a_request_may_take_the_models_stop_strings_away():
    assert params().stop == ("END",)
    assert params(stop=[]).stop == ()
    assert params(stop=["a", "b"]).stop == ("a", "b")


def test_a_default_limit_never_asks_for_more_than_the_context_has_left_but_a_named_one_may():
    assert params(room=10).max_tokens == 10
    assert params(room=-5).max_tokens == 1
    assert params(room=10, max_tokens=50).max_tokens == 50


def test_values_too_small_for_32_bit_floats_are_raised_to_what_these_can_tell():
    assert params(temperature=1e-30).temperature == 0.0
    assert params(top_p=1e-300).top_p >= 1e-6
    assert params(repetition_penalty=1e-300).repetition_penalty >= 1e-2
