"""Which models there are by disk and configuration: entries, adapters and drafts."""

from __future__ import annotations

import json
import shutil
from functools import partial

import numpy as np
import pytest
from config_machine import Machine
from safetensors.numpy import save_file
from tiny_models import build_tiny_model, cached

from mlxd.daemon.catalog import build_catalog
from mlxd.daemon.config import ConfigError
from mlxd.daemon.engine_factory import load_need
from mlxd.daemon.settings import Settings
from mlxd.memory.estimates import inspect_folder
from mlxd.registry.spec import ModelKind

ADAPTER_BYTES = 4 * 8 * 4


@pytest.fixture(scope="session")
def small_model():
    """Has the vocabulary of `tiny_model` and one layer."""
    return cached("small", partial(build_tiny_model, size="micro", vocab_size=2048))


@pytest.fixture
def place(tmp_path, models_dir, tiny_model, small_model):
    """A machine whose models folder has `big`, `small` and `org/other`."""
    models_dir({"big": tiny_model, "small": small_model, "org/other": small_model})
    return Machine(tmp_path)


@pytest.fixture
def adapter(tmp_path):
    """An adapter's folder as far as the daemon reads it."""
    return make_adapter(tmp_path / "adapters/law")


def make_adapter(folder):
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"num_layers": 1}))
    save_file({"lora_a": np.zeros((4, 8), np.float32)}, folder / "adapters.safetensors")
    return folder


def catalog(machine, text):
    return build_catalog(settings(machine, text), None)


def settings(machine, text):
    return machine.load(f'[models]\ndirs = ["{machine.home / "models"}"]\n{text}').settings


def specs(found):
    return {spec.name: spec for spec in found.specs}


def refusals(machine, text):
    with pytest.raises(ConfigError) as raised:
        catalog(machine, text)
    return [(problem.key, problem.message) for problem in raised.value.problems]


def refusal(machine, text):
    [found] = refusals(machine, text)
    return found


# ---- entries


def test_a_folder_that_an_entry_names_is_listed_under_the_entrys_name_only(place):
    found = catalog(place, f'[[model]]\nname = "mine"\npath = "{place.home}/models/big"')
    assert list(specs(found)) == ["mine", "org/other", "small"]


def test_a_folder_that_several_entries_name_has_all_their_names(place):
    path = f'path = "{place.home}/models/big"'
    text = f'[[model]]\nname = "a"\n{path}\n[[model]]\nname = "b"\n{path}\n[[model]]\nname = "big"'
    assert list(specs(catalog(place, text))) == ["a", "b", "big", "org/other", "small"]


def test_a_model_has_the_general_ttl_unless_its_entry_has_another(place):
    text = 'ttl = "1m"\n[[model]]\nname = "big"\n[[model]]\nname = "small"\nttl = "never"'
    assert {name: spec.ttl for name, spec in specs(catalog(place, text)).items()} == {
        "big": 60.0,
        "small": None,
        "org/other": 60.0,
    }


def test_a_path_that_is_a_circle_of_links_is_a_model_with_a_problem(place):
    (place.home / "loop").symlink_to(place.home / "loop")
    found = catalog(place, f'[[model]]\nname = "m"\npath = "{place.home}/loop"')
    assert specs(found)["m"].problem is not None


@pytest.mark.parametrize("listed", ["true", "false"])
def test_an_entrys_repo_is_what_it_was_while_the_cache_is_away(place, small_model, listed):
    cache = place.home / "hub"
    shutil.copytree(small_model, cache / "models--org--m" / "snapshots" / "abc")
    text = f'hf_cache = {listed}\n[[model]]\nname = "mine"\nrepo = "org/m"\n'
    before = build_catalog(settings(place, text), cache)
    cache.rename(place.home / "away")
    again = build_catalog(settings(place, text), cache, before.basis)
    assert again.specs == before.specs
    assert again.estimate(specs(again)["mine"]).weight_bytes > 0
    other = settings(place, text.replace("org/m", "org/n"))
    assert specs(build_catalog(other, cache, before.basis))["mine"].problem is not None


# ---- adapters


def test_an_adapter_is_a_model_of_its_own_over_its_base(place, adapter):
    text = f"""
    [[model]]
    name = "big"
    aliases = ["gpt"]
    pinned = true
    ttl = "1m"
    presets = [{{ name = "quick" }}]
    adapters = {{ law = "{adapter}" }}
    """
    found = catalog(place, text)
    base, law = specs(found)["big"], specs(found)["law"]
    assert (base.adapter, law.adapter, law.path) == (None, adapter, base.path)
    assert law.weight_bytes == base.weight_bytes + ADAPTER_BYTES
    assert load_need(law, Settings()) == load_need(base, Settings()) + ADAPTER_BYTES
    assert law.ttl == 60.0
    same = ("kind", "context_length", "kv_bytes_per_token", "ttl", "problem")
    assert [getattr(law, name) for name in same] == [getattr(base, name) for name in same]
    assert (base.pinned, base.aliases, base.presets) == (True, ("gpt",), ("quick",))
    assert (law.pinned, law.aliases, law.presets) == (False, (), ())
    assert found.estimate(law) == found.estimate(base)
    assert found.names.resolve("law", "").model == "law"
    assert found.notes == ()


def test_an_adapters_relative_path_begins_at_the_configuration_file(place):
    folder = make_adapter(place.file.parent / "here/law")
    found = catalog(place, '[[model]]\nname = "big"\nadapters = { law = "here/law" }')
    assert specs(found)["law"].adapter == folder
    assert found.notes == ()


def test_an_adapter_may_be_the_default_and_be_preloaded(place, adapter):
    text = f'default = "law"\npreload = ["law"]\n[[model]]\nname = "big"\nadapters = {{ law = "{adapter}" }}'
    assert "law" in specs(catalog(place, text))


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapters.safetensors", None])
def test_an_adapter_that_lacks_files_is_listed_with_its_problem_and_noted(place, adapter, missing):
    if missing is None:
        shutil.rmtree(adapter)
    else:
        (adapter / missing).unlink()
    found = catalog(place, f'[[model]]\nname = "big"\nadapters = {{ law = "{adapter}" }}')
    law = specs(found)["law"]
    assert f"adapter {adapter}: {missing or 'adapter_config.json'} is missing" in law.problem
    assert law.weight_bytes == specs(found)["big"].weight_bytes
    assert found.notes == (f"law cannot be loaded: {law.problem}",)
    assert specs(found)["big"].problem is None


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("adapter_config.json", b"{"),
        ("adapter_config.json", b"[]"),
        ("adapter_config.json", b"[" * 100_000),
        ("adapters.safetensors", b""),
        ("adapters.safetensors", b"\xff" * 64),
    ],
)
def test_an_adapter_with_broken_files_is_listed_with_its_problem(place, adapter, file, content):
    (adapter / file).write_bytes(content)
    found = catalog(place, f'[[model]]\nname = "big"\nadapters = {{ law = "{adapter}" }}')
    assert file in specs(found)["law"].problem
    assert len(found.notes) == 1


def test_adapters_over_a_broken_base_have_its_problem(place, adapter):
    (place.home / "models/big/model.safetensors").unlink()
    found = specs(catalog(place, f'[[model]]\nname = "big"\nadapters = {{ law = "{adapter}" }}'))
    assert found["law"].problem == found["big"].problem is not None


def test_an_adapters_name_comes_before_that_of_a_model_on_disk(place, adapter):
    found = catalog(place, f'[[model]]\nname = "big"\nadapters = {{ small = "{adapter}" }}')
    assert specs(found)["small"].adapter == adapter
    assert found.notes == (f"small means the adapter of big; the model in {place.home}/models/small is not listed",)


# ---- drafts


def test_a_model_with_a_draft_counts_both(place, tiny_model, small_model):
    found = catalog(place, '[[model]]\nname = "big"\nengine = { draft = "small" }')
    big, alone, small = specs(found)["big"], inspect_folder(tiny_model), inspect_folder(small_model)
    assert (big.path, big.draft) == (place.home / "models/big", place.home / "models/small")
    assert big.weight_bytes == alone.weight_bytes + small.weight_bytes
    assert big.kv_bytes_per_token == alone.kv_bytes_per_token + small.kv_bytes_per_token
    assert (big.context_length, big.kind, big.problem) == (alone.context_length, ModelKind.TEXT, None)
    assert load_need(big, Settings()) == big.weight_bytes + 256 * big.kv_bytes_per_token
    assert specs(found)["small"].draft is None
    assert specs(found)["small"].weight_bytes == small.weight_bytes


def test_the_cache_of_a_model_with_a_draft_is_that_of_both(place):
    plain, found = catalog(place, ""), catalog(place, '[[model]]\nname = "big"\nengine = { draft = "small" }')
    both, alone = (each.estimate(specs(each)["big"]).kv_bytes_per_token for each in (found, plain))
    assert both - alone == specs(found)["small"].kv_bytes_per_token


def test_a_draft_wider_than_its_model_sets_the_price_of_the_scores(place):
    found = catalog(place, '[[model]]\nname = "small"\nengine = { draft = "big" }')
    estimate, big = found.estimate(specs(found)["small"]), found.estimate(specs(found)["big"])
    assert (estimate.attention_heads, estimate.itemsize) == (big.attention_heads, big.itemsize) == (4, 4)


def test_a_draft_may_be_named_by_an_alias(place):
    text = '[[model]]\nname = "small"\naliases = ["quick"]\n[[model]]\nname = "big"\nengine = { draft = "quick" }'
    assert specs(catalog(place, text))["big"].draft == place.home / "models/small"


def test_a_drafts_own_draft_does_not_come_with_it(place):
    text = """
    [[model]]
    name = "big"
    engine = { draft = "small" }
    [[model]]
    name = "small"
    engine = { draft = "big" }
    """
    found = specs(catalog(place, text))
    assert found["big"].weight_bytes == found["small"].weight_bytes
    assert (found["big"].draft, found["small"].draft) == (found["small"].path, found["big"].path)


def test_adapters_have_the_draft_of_their_base(place, adapter):
    text = f'[[model]]\nname = "big"\nengine = {{ draft = "small" }}\nadapters = {{ law = "{adapter}" }}'
    found = specs(catalog(place, text))
    assert found["law"].draft == found["big"].draft
    assert found["law"].weight_bytes == found["big"].weight_bytes + ADAPTER_BYTES


def test_the_drafts_problem_is_its_models_too(place):
    (place.home / "models/small/model.safetensors").unlink()
    found = specs(catalog(place, '[[model]]\nname = "big"\nengine = { draft = "small" }'))
    assert found["big"].problem == f"draft small: {found['small'].problem}"


ENTRY = '[[model]]\nname = "big"\naliases = ["gpt"]\nengine = { draft = "DRAFT" }\n'
OTHER = '[[model]]\nname = "small"\npresets = [{ name = "quick" }]\nadapters = { law = "/none" }\n'


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        ("smal", 'there is no "smal"; did you mean small?'),
        ("SMALL", 'there is no "SMALL"; did you mean small?'),
        ("other", 'there is no "other"; did you mean org/other?'),
        ("zzzz", "put its folder into one of models.dirs, or give it a [[model]] entry"),
        ("big", 'another model than the one that it helps, got "big"; name a smaller text model'),
        ("gpt", 'another model than the one that it helps, got "gpt"; name a smaller text model'),
        ("quick", 'expected a model, but "quick" is a preset; name its model, small'),
        ("law", 'expected a model, but "law" is an adapter'),
        ("words", 'expected a text model, but "words" is another kind (embedding); name a smaller text model'),
        ("eyes", 'expected a text model, but "eyes" is another kind (vision); name a smaller text model'),
    ],
)
def test_a_draft_that_cannot_be_one_is_refused_with_what_to_do(place, draft, reason):
    for name, config in {"words": {"model_type": "bert"}, "eyes": {"vision_config": {"depth": 1}}}.items():
        (place.home / "models" / name).mkdir()
        (place.home / "models" / name / "config.json").write_text(json.dumps(config))
    key, message = refusal(place, ENTRY.replace("DRAFT", draft) + OTHER)
    assert key == "model.big.engine.draft"
    assert reason in message


def test_the_same_folder_by_another_name_is_no_draft(place):
    (place.home / "models/link").symlink_to(place.home / "models/big")
    key, message = refusal(place, ENTRY.replace("DRAFT", "link"))
    assert key == "model.big.engine.draft"
    assert "another model than the one that it helps" in message


def test_only_text_models_have_drafts(place):
    (place.home / "models/big/config.json").write_text(json.dumps({"model_type": "bert"}))
    key, message = refusal(place, ENTRY.replace("DRAFT", "small"))
    assert key == "model.big.engine.draft"
    assert "big is no text model (embedding); take this key out" in message


def test_all_wrong_drafts_are_told_at_once(place):
    text = """
    [[model]]
    name = "big"
    engine = { draft = "none" }
    [[model]]
    name = "org/other"
    engine = { draft = "nobody" }
    """
    assert [key for key, _ in refusals(place, text)] == ["model.big.engine.draft", 'model."org/other".engine.draft']


def test_an_entry_that_is_unknown_itself_is_told_without_its_draft(place):
    key, _ = refusal(place, '[[model]]\nname = "gone"\nengine = { draft = "small" }\nadapters = { law = "/x" }')
    assert key == "model.gone"
