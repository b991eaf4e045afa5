"""What people and clients see of the configuration, and what must not be reachable without a key."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from config_machine import ENTRY, Machine, as_toml

from mlxd.daemon.config import ConfigError, check_bind, describe, to_public
from mlxd.daemon.config_schema import dotted_keys


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_public_settings_are_json_that_reads_back_as_the_same_settings(machine):
    settings_before = machine.load(ENTRY + '[memory]\nceiling = "24GiB"\n[server]\nmax_body = 1000').settings
    public = json.loads(json.dumps(to_public(settings_before)))
    text = "\n".join(f"{key} = {as_toml(value)}" for key, value in public.items())
    assert machine.load(text).settings == settings_before


def test_a_description_has_every_key_its_value_and_its_origin(machine):
    rows = describe(machine.load(ENTRY, flags={"port": 0}))
    table = {key: (value, origin) for key, value, origin in rows}
    assert set(dotted_keys()) <= set(table)
    assert table["server.port"] == ("0", "flag --port")
    assert table["server.max_body"] == ('"64MB"', "default")
    assert table["models.ttl"] == ('"never"', "default")
    assert table["model.qwen.aliases"] == ('["gpt-4o", "default-chat"]', "file")
    assert table["model.qwen.engine.max_running"] == ("8", "file")
    assert table["model.qwen.presets[0].template.enable_thinking"] == ("false", "file")
    assert "model.qwen.repo" not in table


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "LOCALHOST", "::ffff:127.0.0.1"])
def test_a_loopback_address_needs_no_key(machine, host):
    check_bind(machine.load(flags={"host": host}).settings, has_keys=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "box.local", "localhost.example"])
def test_any_other_address_needs_a_key(machine, host):
    loaded = machine.load(flags={"host": host}).settings
    check_bind(loaded, has_keys=True)
    with pytest.raises(ConfigError, match=r"^server\.host: other machines can reach"):
        check_bind(loaded, has_keys=False)


def test_the_configuration_is_read_without_mlx():
    code = (
        "import sys, mlxd.daemon.config, mlxd.daemon.blas, mlxd.daemon.log\n"
        "print(sorted({'mlx', 'mlx_lm', 'transformers', 'aiohttp'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
