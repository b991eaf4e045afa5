"""A real daemon with `prefix_cache_disk`: prompts stay known over unloads and restarts, and damage is only a miss."""

import signal

import pytest
from daemon_process import Api, daemon
from tiny_models import place_models

CONFIG = '[engine]\nprefix_cache_disk = "200MB"\n'
TEXT = "the same long question " * 40


@pytest.fixture
def models(tmp_path, tiny_model, other_tiny_model):
    return place_models(tmp_path / "models", {"m": tiny_model, "other": other_tiny_model})


async def ask(api: Api, model: str = "m", text: str = TEXT) -> tuple[str, int, int]:
    """The answer, the prompt's tokens and how many of them were cached."""
    status, answer = await api.chat(model, text, max_tokens=8)
    assert status == 200, answer
    usage = answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["message"]["content"], usage["prompt_tokens"], cached


async def test_a_prompt_is_known_after_unload_and_load(tmp_path, models):
    with daemon(tmp_path / "d", models, CONFIG) as running:
        async with Api(running.url) as api:
            cold, tokens, cached = await ask(api)
            assert cached == 0
            await api.call("POST", "/admin/models/m/unload")
            warm, _, cached = await ask(api)
            assert (warm, cached) == (cold, tokens - 1)
            # another model has prompts of its own
            assert (await ask(api, "other"))[2] == 0


async def test_a_prompt_is_known_after_a_restart(tmp_path, models):
    with daemon(tmp_path / "d", models, CONFIG) as running:
        async with Api(running.url) as api:
            cold, tokens, _ = await ask(api)
    with daemon(tmp_path / "d", models, CONFIG) as running:
        async with Api(running.url) as api:
            assert await ask(api) == (cold, tokens, tokens - 1)


async def test_a_changed_model_has_no_old_prompts(tmp_path, models):
    with daemon(tmp_path / "d", models, CONFIG) as running:
        async with Api(running.url) as api:
            await ask(api)
    tokenizer = models / "m" / "tokenizer_config.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    with daemon(tmp_path / "d", models, CONFIG) as running:
        async with Api(running.url) as api:
            assert (await ask(api))[2] == 0


async def test_damaged_files_are_a_miss_and_the_answer_is_right(tmp_path, models):
    with daemon(tmp_path / "d", models, CONFIG) as running:
        async with Api(running.url) as api:
            cold, tokens, _ = await ask(api)
    files = sorted((tmp_path / "d" / "state").rglob("*.safetensors"))
    assert files
    for file in files:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    with daemon(tmp_path / "d", models, CONFIG) as running:
        async with Api(running.url) as api:
            assert await ask(api) == (cold, tokens, 0)
        assert any(event["event"] == "prefix_disk.failed" for event in running.events())


async def test_a_killed_daemon_leaves_nothing_that_harms_the_next(tmp_path, models):
    with daemon(tmp_path / "d", models, CONFIG, exit_code=None) as running:
        async with Api(running.url) as api:
            cold, tokens, _ = await ask(api)
            await api.call("POST", "/admin/models/m/unload")
        running.process.send_signal(signal.SIGKILL)
        running.process.wait(20)
    with daemon(tmp_path / "d", models, CONFIG) as running:
        async with Api(running.url) as api:
            assert await ask(api) == (cold, tokens, tokens - 1)


async def test_without_a_disk_nothing_outlives_the_model(tmp_path, models):
    with daemon(tmp_path / "d", models) as running:
        async with Api(running.url) as api:
            await ask(api)
            assert (await ask(api))[2] > 0
            await api.call("POST", "/admin/models/m/unload")
            assert (await ask(api))[2] == 0
    assert list((tmp_path / "d" / "state").glob("*prefixes")) == []
