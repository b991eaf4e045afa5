"""Every kind of value that a key takes, and every kind that it does not."""

from __future__ import annotations

import msgspec
import pytest
from config_machine import Machine

from mlxd.daemon.config import ConfigError, load_config
from mlxd.daemon.unavailable import refuse_unavailable
from mlxd.daemon.units import Size

TO = "\N{EN DASH}"


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("key", "written", "reason"),
    [
        ("server.host", '""', "expected a host name"),
        ("server.host", '"http://x"', "expected a host name"),
        ("server.host", '"127.0.0.1:80"', "expected a host name"),
        ("server.host", '"[::1]"', "expected a host name"),
        ("server.host", '"127.0.0.256"', "expected a host name"),
        ("server.host", "1", "expected a string, got 1"),
        ("server.port", '"abc"', f'expected an integer 0{TO}65535, got "abc"'),
        ("server.port", '"80"', f'expected an integer 0{TO}65535, got "80"'),
        ("server.port", "65536", f"expected an integer 0{TO}65535, got 65536"),
        ("server.port", "-1", f"expected an integer 0{TO}65535, got -1"),
        ("server.port", "80.0", "expected an integer"),
        ("server.port", "true", f"expected an integer 0{TO}65535, got true"),
        ("server.port", "{}", "got a table"),
        ("server.port", "[1]", "got an array"),
        ("server.port", "1979-05-27", "got 1979-05-27"),
        ("server.unix_socket", "1", "expected a path"),
        ("server.unix_socket", '"a\\u0000b"', "without control characters"),
        ("server.allowed_hosts", '"a"', "expected an array"),
        ("server.allowed_hosts", '["a", "b c"]', 'got "b c"'),
        ("server.allowed_hosts", "[1]", "expected a string, got 1"),
        ("server.allowed_hosts", '["a", "a"]', "every entry once"),
        ("server.cors_origins", '["example.org"]', "expected an origin"),
        ("server.cors_origins", '["https://a/b"]', "expected an origin"),
        ("server.cors_origins", '["https://u@a"]', "expected an origin"),
        ("server.max_body", "0", "1 bytes or more"),
        ("server.max_body", '"50%"', "expected bytes"),
        ("server.max_body", '"10G"', '"G" is not one of'),
        ("server.keepalive_interval", "0", "1ms or more"),
        ("server.drain_timeout", '"never"', "with an end"),
        ("server.drain_timeout", '"soon"', "expected seconds"),
        ("server.drain_timeout", "-1", "negative"),
        ("server.drain_timeout", "nan", "expected seconds"),
        ("server.drain_timeout", "inf", "expected seconds"),
        ("server.state_dir", '""', "expected a path"),
        ("server.state_dir", '"~nobody-of-this-name/x"', "no such user"),
        ("auth.keys_file", "[]", "expected a path"),
        ("models.dirs", '[""]', "expected a path"),
        ("models.hf_cache", '"yes"', "expected true or false"),
        ("models.hf_cache", "1", "expected true or false"),
        ("models.default", '"a b"', "without spaces"),
        ("models.preload", '["../x"]', "parts between slashes"),
        ("models.ttl", '"5d"', 'expected "never", or seconds'),
        ("residency.max_loaded", "-1", "0 or more"),
        ("residency.max_loading", "0", "1 or more"),
        ("residency.queue_size", "0", "1 or more"),
        ("residency.queue_timeout", '"never"', "with an end"),
        ("residency.min_residency", '"never"', "with an end"),
        ("memory.ceiling", '"off"', 'expected "auto", or'),
        ("memory.ceiling", "0", "1 bytes or more"),
        ("memory.ceiling", '"0%"', "more than 0%"),
        ("memory.soft", '"101%"', "0% to 100%"),
        ("memory.soft", '"auto"', "expected bytes"),
        ("memory.poll_interval", "0", "10ms or more"),
        ("engine.isolation", '"fork"', 'expected "thread" or "process", got "fork"'),
        ("engine.blas", '""', 'expected "auto", "off" or a path'),
        ("engine.max_running", "0", "1 or more"),
        ("engine.prefix_cache", '"on"', 'expected "auto", or "off", or'),
        ("engine.prefix_cache_disk", '"auto"', 'expected "off", or'),
        ("engine.prefix_cache_disk", '"5%"', '"%" is not one of'),
        ("log.level", '"loud"', 'expected "debug", "info", "warning" or "error", got "loud"'),
        ("log.format", "1", "expected"),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_expected(machine, key, written, reason):
    section, name = key.split(".")
    problem = machine.problem(f"[{section}]\n\n{name} = {written}")
    assert (problem.key, problem.line, problem.source) == (key, 3, str(machine.file))
    assert reason in problem.message


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("server.host", '"0.0.0.0"', "0.0.0.0"),
        ("server.host", '"::1"', "::1"),
        ("server.host", '"box.local"', "box.local"),
        ("server.port", "0", 0),
        (
            "server.allowed_hosts",
            '["box:8484", "[fe80::1]:80", "10.0.0.1:80"]',
            ("box:8484", "[fe80::1]:80", "10.0.0.1:80"),
        ),
        (
            "server.cors_origins",
            '["*", "http://localhost:3000", "tauri://x"]',
            ("*", "http://localhost:3000", "tauri://x"),
        ),
        ("server.keepalive_interval", '"never"', None),
        ("models.default", '"org/name:tag"', "org/name:tag"),
        ("residency.max_wait", '"never"', None),
        ("residency.retry_backoff", "0", 0.0),
        ("memory.soft", '"20GiB"', Size(bytes=20 * 2**30)),
        ("engine.max_stall", '"never"', None),
        ("engine.prefix_cache", '"off"', "off"),
        ("engine.prefix_cache", '"10%"', Size(fraction=0.1)),
        ("engine.prefix_cache_disk", '"1GB"', Size(bytes=10**9)),
    ],
)
def test_a_right_value_is_taken(machine, key, written, value):
    section, name = key.split(".")
    loaded = machine.load(f"[{section}]\n{name} = {written}").settings
    assert msgspec.structs.asdict(getattr(loaded, section))[name] == value


def test_a_disk_for_prefixes_without_memory_for_them_is_refused(tmp_path):
    file = tmp_path / "mlxd.toml"
    file.write_text('[engine]\nprefix_cache = "off"\nprefix_cache_disk = "1GB"\n')
    settings = load_config({}, {"HOME": str(tmp_path)}, file).settings
    with pytest.raises(ConfigError, match="needs prefix_cache"):
        refuse_unavailable(settings)
