"""What a key may do, and how one that is sent is found."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from mlxd.daemon.keys import ApiKey, Scope, find_key, hash_of, new_secret
from mlxd.registry.names import NameTable, Resolved
from mlxd.registry.spec import ModelSpec

NAMES = NameTable.build(
    [
        ModelSpec("qwen", Path("/q"), aliases=("gpt-4o", "Small"), presets=("qwen-cold", "gentle")),
        ModelSpec("org/llama", Path("/l"), aliases=("big",)),
        ModelSpec("Qwen", Path("/other")),
    ]
)


def key(*scopes, models=(), secret="s", name="k"):
    return ApiKey(name, scopes or (Scope.INFER,), hash_of(secret), datetime.now(UTC), models)


def may_use(name, *patterns):
    return key(models=patterns).may_use(NAMES.resolve(name, ""), NAMES.exact)


def test_admin_includes_the_other_scopes_and_they_include_nothing():
    assert [[scope for scope in Scope if key(own).has(scope)] for own in Scope] == [
        [Scope.INFER],
        [Scope.READ],
        [Scope.INFER, Scope.READ, Scope.ADMIN],
    ]
    assert not key(Scope.INFER, Scope.READ).has(Scope.ADMIN)


@pytest.mark.parametrize("name", ["qwen", "gpt-4o", "GPT-4O", "qwen-cold", "qwen:latest", "gpt-4o:latest", "small"])
def test_a_pattern_holds_for_the_model_whatever_it_is_called(name):
    assert may_use(name, "qwen")
    assert may_use(name, "other", "q*n")
    assert not may_use(name, "org/*")


@pytest.mark.parametrize(
    ("name", "pattern"), [("gpt-4o", "gpt-*"), ("big", "b?g"), ("llama", "llama"), ("Qwen", "qw*")]
)
def test_no_spelling_and_no_alias_lets_in_what_the_models_name_does_not(name, pattern):
    assert not may_use(name, pattern)


def test_an_alias_counts_where_it_is_written_out():
    assert may_use("gpt-4o", "gpt-4o")
    assert may_use("qwen-cold", "gpt-4o")
    assert not may_use("org/llama", "gpt-4o")
    assert not may_use("gpt-4o", "GPT-4O")


def test_a_preset_can_be_allowed_without_its_model():
    assert may_use("gentle", "gentle")
    assert not may_use("qwen", "gentle")
    assert not may_use("qwen-cold", "gentle")


def test_an_alias_that_loses_to_a_models_name_opens_nothing():
    names = NameTable.build([ModelSpec("a", Path("/a"), aliases=("b",)), ModelSpec("b", Path("/b"))])
    assert not key(models=("b",)).may_use(Resolved("a"), names.exact)
    assert key(models=("b",)).may_use(Resolved("b"), names.exact)


def test_without_patterns_every_model_may_be_used():
    assert may_use("big")


def test_a_secret_is_long_told_by_its_prefix_and_never_the_same():
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert all(secret.startswith("mlxd-") and len(secret) == 48 and secret.isascii() for secret in made)


def test_a_key_is_found_by_its_secret_alone():
    keys = [key(secret=f"secret {number}", name=str(number)) for number in range(3)]
    found = [find_key(keys, secret) for secret in ("secret 0", "secret 2", "secret 3", "", keys[0].hash, "0")]
    assert [each and each.name for each in found] == ["0", "2", None, None, None, None]


def test_any_bytes_of_a_header_may_be_looked_up():
    assert find_key([key()], "\udcff\x00ü\U0001f600") is None
