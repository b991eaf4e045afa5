"""What a reload changes, and when each key of the configuration takes effect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from api_fakes import live
from config_machine import Machine
from doc_pages import page, rows, words
from msgspec import structs, to_builtins

from mlxd.daemon.config_effect import KEYS, MODEL_KEYS, Applies, applies, in_effect
from mlxd.daemon.config_schema import DRAFT_RULES, MODEL_RULES, MODEL_TABLES, OVERRIDE_RULES, dotted_keys
from mlxd.daemon.load_keys import files_of, with_load_keys
from mlxd.daemon.reload_diff import ModelChanges, reload_diff
from mlxd.daemon.settings import EngineSettings, ModelSettings, Settings
from mlxd.daemon.units import Size
from mlxd.registry.spec import ModelSpec

# a value beside the default for each key that one model's engine table may have
OTHER_ENGINE = {
    "isolation": "process",
    "max_running": 1,
    "max_waiting": 1,
    "context_length": 9,
    "max_tokens": 9,
    "prefill_chunk": 9,
    "max_stall": 9.0,
    "prefix_cache": "off",
    "prefix_cache_disk": Size(bytes=9),
    "draft_tokens": 1,
}
ALPHA, BETA = ModelSpec("alpha", Path("/a"), load_key="1"), ModelSpec("beta", Path("/b"), load_key="2")


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def state(settings=None, specs=(ALPHA, BETA)):
    return live(settings or Settings(), specs).now


def diff(settings=None, specs=(ALPHA, BETA), before=None):
    return reload_diff(before or state(), state(settings, specs))


# ---- when each key takes effect


def test_every_key_has_a_moment_at_which_it_takes_effect():
    assert KEYS.keys() == {*dotted_keys(), *(f"engine.{key}" for key in DRAFT_RULES)}
    assert {*MODEL_KEYS, "engine"} == {*MODEL_RULES, *MODEL_TABLES}


@pytest.mark.parametrize("key", dotted_keys())
def test_a_key_is_kept_until_a_restart_only_if_it_says_so(key, machine):
    changed = machine.load(f"{key} = {OTHER_VALUES[key]}").settings
    running = machine.load("").settings
    section, _, name = key.partition(".")

    def value(settings):
        return structs.asdict(structs.asdict(settings)[section])[name]

    assert value(changed) != value(running), "the test needs another value"
    kept = value(in_effect(running, changed)) == value(running)
    assert kept == (KEYS[key] is Applies.RESTART)
    [change] = [change for change in diff(changed, before=state(running)).keys if change.key == key]
    assert change.applies is KEYS[key]


OTHER_VALUES = {
    "server.host": '"127.0.0.2"',
    "server.port": "1",
    "server.unix_socket": '"/s"',
    "server.allowed_hosts": '["h"]',
    "server.cors_origins": '["https://a.example"]',
    "server.max_body": "9",
    "server.keepalive_interval": "9",
    "server.drain_timeout": "9",
    "server.state_dir": '"/d"',
    "auth.keys_file": '"/k"',
    "models.dirs": '["/m"]',
    "models.hf_cache": "false",
    "models.default": '"m"',
    "models.autoload": "false",
    "models.preload": '["m"]',
    "models.restore": "true",
    "models.ttl": "9",
    "models.watch_interval": "9",
    "residency.max_loaded": "9",
    "residency.max_loading": "9",
    "residency.queue_size": "9",
    "residency.queue_timeout": "9",
    "residency.max_wait": "9",
    "residency.min_residency": "9",
    "residency.load_stall_timeout": "9",
    "residency.unload_timeout": "9",
    "residency.retry_backoff": "9",
    "memory.ceiling": '"9GB"',
    "memory.soft": '"9%"',
    "memory.poll_interval": "9",
    "engine.isolation": '"process"',
    "engine.step_lock": "true",
    "engine.blas": '"off"',
    "engine.max_running": "9",
    "engine.max_waiting": "9",
    "engine.context_length": "9",
    "engine.max_tokens": "9",
    "engine.prefill_chunk": "9",
    "engine.max_stall": "9",
    "engine.prefix_cache": '"off"',
    "engine.prefix_cache_disk": '"9GB"',
    "images.max_count": "9",
    "images.max_bytes": "9",
    "images.max_pixels": "9",
    "images.remote_hosts": '["h"]',
    "supervision.answer_timeout": "9",
    "supervision.hang_timeout": "9",
    "supervision.loop_timeout": "9",
    "supervision.exit_on_hang": "true",
    "log.level": '"error"',
    "log.format": '"json"',
    "log.file": '"/l"',
    "log.stderr": "false",
    "log.prompts": "true",
}


@pytest.mark.parametrize("key", sorted(OVERRIDE_RULES.keys() - {"draft"}))
def test_an_engine_key_loads_a_model_again_only_if_it_says_so(key):
    entry = ModelSettings("alpha", engine={key: OTHER_ENGINE[key]})
    spec = replace(ALPHA, draft=Path("/d"))
    [before] = with_load_keys([spec], Settings(), files_of([spec]))
    [after] = with_load_keys([spec], Settings(model=(entry,)), files_of([spec]))
    assert structs.asdict(EngineSettings())[key] != OTHER_ENGINE[key]
    assert (before.load_key != after.load_key) == (KEYS[f"engine.{key}"] is Applies.RELOAD)


def test_the_document_says_when_each_key_takes_effect():
    text = page("configuration")
    told = {word: when for keys, when in rows(text, "Reloading") for word in words(keys)}
    later = {key: str(when) for key, when in KEYS.items() if when is not Applies.NOW and "draft" not in key}
    meaning = {"after a restart": "restart", "after the next load": "reload"}
    assert {key: meaning[when] for key, when in told.items() if "." in key} == later
    own = {key: "after the next load" for key, when in MODEL_KEYS.items() if when is Applies.RELOAD}
    assert {key: when for key, when in told.items() if "." not in key} == own | dict.fromkeys(
        DRAFT_RULES, "after the next load"
    )


def test_the_keys_of_a_model_are_found_by_name_whatever_it_is_called():
    assert applies(("model", "a.b/c[0]", "ttl")) is Applies.NOW
    assert applies(("model", "engine", "engine", "context_length")) is Applies.RELOAD
    assert applies(("model", "m", "presets", 0, "sampling", "top_k")) is Applies.NOW
    assert applies(("model", "m", "adapters", "x.y")) is Applies.RELOAD


# ---- load keys


def folder_with(tmp_path, name, **files):
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    for file, text in files.items():
        (folder / file.replace("_", ".")).write_text(text)
    return folder


def load_key(**changes):
    model = ModelSpec("m", **changes)
    [spec] = with_load_keys([model], Settings(), files_of([model]))
    return spec.load_key


def test_other_weights_are_another_load_and_other_notes_are_none(tmp_path):
    path = folder_with(tmp_path, "m", config_json="{}", model_safetensors="1")
    first = load_key(path=path)
    folder_with(tmp_path, "m", README_md="about it", _hidden="x")
    assert load_key(path=path) == first
    folder_with(tmp_path, "m", model_safetensors="12")
    assert load_key(path=path) != first


def test_the_files_of_an_adapter_and_a_draft_count(tmp_path):
    path = folder_with(tmp_path, "m", config_json="{}")
    other = folder_with(tmp_path, "o", adapters_safetensors="1")
    keys = {load_key(path=path), load_key(path=path, adapter=other), load_key(path=path, draft=other)}
    assert len(keys) == 3
    folder_with(tmp_path, "o", adapters_safetensors="12")
    assert keys.isdisjoint({load_key(path=path, adapter=other), load_key(path=path, draft=other)})


def test_another_way_to_the_same_folder_is_the_same_load(tmp_path):
    path = folder_with(tmp_path, "m", config_json="{}")
    (tmp_path / "link").symlink_to(path)
    assert load_key(path=tmp_path / "link") == load_key(path=path)


def test_a_folder_that_comes_is_another_load(tmp_path):
    missing = load_key(path=tmp_path / "m")
    assert load_key(path=tmp_path / "m") == missing
    assert load_key(path=folder_with(tmp_path, "m", config_json="{}")) != missing


# ---- the difference


def test_nothing_changed_is_an_empty_difference():
    assert diff().is_empty
    assert not diff().needs_restart


def test_models_are_told_by_what_becomes_of_them():
    gamma = ModelSpec("gamma", Path("/g"))
    old = state(specs=(ALPHA, BETA, gamma))
    found = diff(specs=(replace(ALPHA, load_key="9"), replace(BETA, ttl=5.0), ModelSpec("new", Path("/n"))), before=old)
    assert found.models == ModelChanges(("new",), ("gamma",), ("alpha",), ("beta",))


def test_a_model_that_loads_again_is_not_told_as_changed_too():
    found = diff(specs=(replace(ALPHA, load_key="9", ttl=1.0), BETA))
    assert (found.models.reloaded, found.models.changed) == (("alpha",), ())


def test_an_entry_that_comes_and_goes_shows_its_keys(machine):
    with_entry = machine.load('[[model]]\nname = "alpha"\nsampling = { top_k = 3 }').settings
    without = machine.load("").settings
    came = diff(with_entry, before=state(without))
    assert came.models.changed == ("alpha",)
    assert {change.key: (change.old, change.new) for change in came.keys} == {
        "model.alpha.name": (None, "alpha"),
        "model.alpha.aliases": (None, []),
        "model.alpha.pinned": (None, False),
        "model.alpha.ttl": (None, "never"),
        "model.alpha.sampling.top_k": (None, 3),
    }
    went = diff(without, before=state(with_entry))
    assert {change.key: change.new for change in went.keys} == {change.key: None for change in came.keys}


def test_an_adapter_changes_with_what_it_has_from_its_entry_only(machine):
    text = '[[model]]\nname = "alpha"\nadapters = { law = "/l" }\n'
    law = ModelSpec("law", Path("/a"))
    before = state(machine.load(text).settings, (ALPHA, law))
    renamed = diff(machine.load(text + 'aliases = ["a"]').settings, (replace(ALPHA, aliases=("a",)), law), before)
    assert renamed.models.changed == ("alpha",)
    sampled = diff(machine.load(text + "sampling = { top_k = 1 }").settings, (ALPHA, law), before)
    assert sampled.models.changed == ("alpha", "law")


def test_only_new_notes_are_told():
    clash = (ModelSpec("a/m", Path("/1")), ModelSpec("b/m", Path("/2")))
    note = "m alone is ambiguous (a/m, b/m); clients must send the full name"
    assert diff(specs=clash).notes == (note,)
    assert diff(specs=clash, before=state(specs=clash)).notes == ()


def test_a_difference_is_plain_data(machine):
    changed = machine.load('[memory]\nceiling = "9GB"\n[server]\nport = 7').settings
    found = to_builtins(diff(changed, before=state(machine.load("").settings)))
    assert list(found["keys"]) == [
        {"key": "server.port", "old": 8484, "new": 7, "applies": "restart"},
        {"key": "memory.ceiling", "old": "auto", "new": "9GB", "applies": "now"},
    ]
