"""docs/configuration.md says what the configuration takes: its tables, defaults and examples are compared with it."""

import json
import re
from dataclasses import asdict

import pytest
from doc_pages import PAGES, blocks, claims, page, rows, takes, words
from msgspec import structs

from mlxd.daemon.config import ConfigError, load_config
from mlxd.daemon.config_env import FLAGS, variable
from mlxd.daemon.config_rules import Base
from mlxd.daemon.config_schema import (
    DRAFT_RULES,
    HOST_RULES,
    MODEL_RULES,
    MODEL_TABLES,
    PEER_RULES,
    PRESET_RULES,
    PRESET_TABLES,
    SAMPLING_RULES,
    SECTIONS,
    SHARD_RULES,
    WHOLE_DAEMON,
    dotted_keys,
)
from mlxd.daemon.settings import EngineSettings, Settings
from mlxd.daemon.unavailable import refuse_unavailable
from mlxd.engines.types import SamplingParams

TEXT = page("configuration")
ENTRIES = {
    "[[model]]": {key: rule for key, rule in MODEL_RULES.items() if key not in {*HOST_RULES, *SHARD_RULES}},
    "hosts": {**HOST_RULES, **SHARD_RULES},
    "[[peer]]": PEER_RULES,
    "sampling": SAMPLING_RULES,
    "presets": PRESET_RULES,
    "drafts": DRAFT_RULES,
}
RULES = {f"[{name}]": table.rules for name, table in SECTIONS.items()} | ENTRIES
TABLES = {"[[model]]": MODEL_TABLES, "presets": PRESET_TABLES}
# a value beside the default for each key of [engine] and of a model's engine table
ANOTHER = {
    "isolation": "process",
    "step_lock": True,
    "blas": "off",
    "max_running": 1,
    "max_waiting": 1,
    "context_length": 9,
    "max_tokens": 9,
    "prefill_chunk": 9,
    "max_stall": 9.0,
    "prefix_cache": "off",
    "prefix_cache_disk": "1GB",
    "draft": "qwen",
    "draft_tokens": 1,
}


def loaded(text, folder):
    file = folder / "mlxd.toml"
    file.write_text(text)
    return load_config({}, {"HOME": str(folder)}, file).settings


def column(heading, number):
    return {words(row[0])[0]: row[number] for row in rows(TEXT, heading)}


@pytest.mark.parametrize("heading", RULES)
def test_a_table_has_every_key_and_no_other(heading):
    documented = column(heading, 1)
    tables = {key for key, kind in documented.items() if kind in ("table", "array of tables")}
    assert [key for key in documented if key not in tables] == list(RULES[heading])
    assert tables == TABLES.get(heading, set())


@pytest.mark.parametrize("heading", RULES)
def test_a_key_takes_what_the_document_says(heading, tmp_path):
    kinds, base, wrong = column(heading, 1), Base(tmp_path, tmp_path), []
    for key, rule in RULES[heading].items():
        good, bad = claims(kinds[key])
        assert good
        assert bad
        wrong += [(key, value) for value in good if not takes(lambda value, read=rule.read: read(value, base), value)]
        wrong += [(key, value) for value in bad if takes(lambda value, read=rule.read: read(value, base), value)]
    assert wrong == []


def test_the_documented_defaults_are_the_defaults(tmp_path):
    text = ""
    for heading in RULES.keys() - ENTRIES.keys():
        lines = [f"{key} = {words(default)[0]}" for key, default in column(heading, 2).items()]
        text += "\n".join([heading, *lines, ""])
    assert loaded(text, tmp_path) == loaded("", tmp_path)


def test_the_documented_defaults_of_a_model_are_the_defaults(tmp_path):
    defaults = column("[[model]]", 2)
    assert {key for key, default in defaults.items() if "`" not in default} == {"name", "path", "repo"}
    assert defaults.pop("ttl") == "`models.ttl`"
    assert loaded('models.ttl = "7m"\n[[model]]\nname = "m"', tmp_path).model[0].ttl == 420
    text = "\n".join(f"{key} = {words(default)[0]}" for key, default in defaults.items() if "`" in default)
    assert loaded(f'[[model]]\nname = "m"\n{text}', tmp_path) == loaded('[[model]]\nname = "m"', tmp_path)


def test_the_documented_defaults_of_hosts_are_the_defaults(tmp_path):
    defaults = column("hosts", 2)
    assert [key for key, default in defaults.items() if default[0] != "`"] == [
        "hostfile",
        "backend",
        "remote_python",
    ]
    shell = f"remote_shell = {words(defaults['remote_shell'])[0]}\nsharding = {words(defaults['sharding'])[0]}"
    entry = '[[model]]\nname = "m"\nhosts = ["localhost", "b"]\n'
    assert loaded(entry + shell, tmp_path) == loaded(entry, tmp_path)
    assert loaded('[[model]]\nname = "m"', tmp_path).model[0].hosts == ()


def test_the_documented_defaults_of_drafts_are_the_defaults(tmp_path):
    keys = ", ".join(f"{key} = {words(default)[0]}" for key, default in column("drafts", 2).items())
    written = loaded(f'[[model]]\nname = "m"\nengine = {{ {keys} }}', tmp_path)
    assert written.engine_for("m") == loaded("", tmp_path).engine_for("m")


@pytest.mark.parametrize("key", SAMPLING_RULES)
def test_a_documented_sampling_default_is_the_engines(key):
    default = column("sampling", 2)[key]
    documented = None if default == "unset" else json.loads(words(default)[0])
    known = asdict(SamplingParams())[key]
    assert documented == (list(known) if isinstance(known, tuple) else known)


@pytest.mark.parametrize("key", EngineSettings.__struct_fields__)
def test_a_key_that_is_refused_is_marked_so(key):
    settings = Settings(engine=structs.replace(EngineSettings(), **{key: ANOTHER[key]}))
    text = (column("[engine]", 3) | column("drafts", 3))[key]
    assert ("**refused**" in text) == is_refused(settings)


def is_refused(settings):
    try:
        refuse_unavailable(settings)
    except ConfigError:
        return True
    return False


def test_the_keys_of_the_whole_daemon_are_named():
    [sentence] = re.findall(r"All keys but (.*) can be overridden", TEXT)
    assert set(words(sentence)) == WHOLE_DAEMON


def test_an_example_can_be_used_as_it_is(tmp_path):
    examples = [text for file in PAGES for _, text in blocks(file.read_text(encoding="utf-8"), "toml")]
    assert len(examples) > 1
    for text in examples:
        settings = loaded(text, tmp_path)
        refuse_unavailable(settings)


def test_the_flags_are_those_of_serve():
    named = [(words(flag)[0], words(key)[0]) for flag, key in rows(TEXT, "Where values come from")]
    documented = {flag.split()[0].removeprefix("--").replace("-", "_"): key for flag, key in named}
    assert documented == FLAGS


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_a_variable_that_is_named_sets_a_key(file):
    known = {variable(key) for key in dotted_keys()}
    assert set(re.findall(r"MLXD_[A-Z_]*__[A-Z_]+", file.read_text(encoding="utf-8"))) <= known
