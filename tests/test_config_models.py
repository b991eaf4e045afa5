"""Model entries: what they may say, what they inherit, and that names are unique."""

from __future__ import annotations

import pytest
from config_machine import ENTRY, Machine

from mlxd.daemon.catalog import sampling_for
from mlxd.daemon.settings import SamplingSettings

TO = "\N{EN DASH}"


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_a_documented_model_entry_is_read(machine):
    loaded = machine.load(ENTRY).settings
    entry = loaded.model_for("qwen")
    assert entry.path == machine.home / "models/Qwen3-8B-4bit"
    assert (entry.aliases, entry.pinned, entry.ttl) == (("gpt-4o", "default-chat"), False, 600.0)
    assert entry.sampling == SamplingSettings(temperature=0.7, top_p=0.9)
    [preset] = entry.presets
    assert preset.sampling.over(entry.sampling) == SamplingSettings(temperature=0, top_p=0.9)
    assert preset.template == {"enable_thinking": False}


def test_engine_overrides_are_laid_over_the_engine_table(machine):
    loaded = machine.load(ENTRY + "[engine]\nmax_running = 2\nmax_waiting = 9").settings
    qwen, other = loaded.engine_for("qwen"), loaded.engine_for("other")
    assert (qwen.isolation, qwen.max_running, qwen.max_waiting) == ("process", 8, 9)
    assert (other.isolation, other.max_running, other.max_waiting) == ("thread", 2, 9)


def test_only_the_entry_that_names_a_draft_has_one(machine):
    text = '[[model]]\nname = "a"\nengine = { draft = "b", draft_tokens = 5 }\n[[model]]\nname = "b"'
    loaded = machine.load(text)
    found = [loaded.settings.engine_for(name) for name in ("a", "b", "c")]
    assert [(engine.draft, engine.draft_tokens) for engine in found] == [("b", 5), (None, 3), (None, 3)]
    assert loaded.origins["model.a.engine.draft"] == "file"


def test_an_empty_draft_is_none(machine):
    loaded = machine.load('[[model]]\nname = "a"\nengine = { draft = "" }')
    assert loaded.settings.engine_for("a").draft is None


def test_an_adapter_has_the_settings_of_its_models_entry(machine):
    text = """
    [[model]]
    name = "base"
    ttl = "1m"
    engine = { max_running = 2 }
    sampling = { top_k = 4 }
    adapters = { law = "law", "org/med-1.5" = "~/med" }
    presets = [{ name = "p", sampling = { top_k = 9 } }]
    """
    loaded = machine.load(text)
    settings = loaded.settings
    [entry] = settings.model
    assert entry.adapters == {"law": machine.file.parent / "law", "org/med-1.5": machine.home / "med"}
    for name in ("base", "law", "org/med-1.5"):
        assert settings.model_for(name) is entry
        assert settings.engine_for(name).max_running == 2
        assert sampling_for(settings, name, None).top_k == 4
    assert settings.model_for("med-1.5") is None
    assert loaded.origins['model.base.adapters."org/med-1.5"'] == "file"


def test_a_model_has_the_general_ttl_unless_it_has_its_own(machine):
    text = '[models]\nttl = "1m"\n[[model]]\nname = "a"\n[[model]]\nname = "b"\nttl = "never"'
    loaded = machine.load(text)
    assert [entry.ttl for entry in loaded.settings.model] == [60.0, None]
    assert loaded.origins["model.a.ttl"] == "models.ttl"
    assert loaded.origins["model.b.ttl"] == "file"


def test_an_entry_without_path_and_repo_is_about_a_discovered_model(machine):
    [entry] = machine.load('[[model]]\nname = "org/Qwen2.5"').settings.model
    assert (entry.path, entry.repo) == (None, None)


def test_one_stop_string_may_stand_alone(machine):
    [entry] = machine.load('[[model]]\nname = "a"\nsampling = { stop = "END" }').settings.model
    assert entry.sampling.stop == ("END",)


@pytest.mark.parametrize(
    ("body", "key", "reason"),
    [
        ('repo = "a/b"\npath = "/x"', "repo", "not both"),
        ('repo = "b"', "repo", 'expected a repository as "owner/name"'),
        ("ttl = -1", "ttl", "negative"),
        ("pinned = 1", "pinned", "expected true or false"),
        ("alias = []", "alias", "did you mean aliases?"),
        ("max_running = 3", "max_running", "did you mean engine.max_running?"),
        ("temperature = 1", "temperature", "did you mean sampling.temperature?"),
        ('aliases = ["m"]', "aliases", 'expected a name of its own, but "m" is already a model'),
        ("engine = 1", "engine", "expected a table"),
        ("engine = { max_runing = 1 }", "engine.max_runing", "did you mean max_running?"),
        ("engine = { max_running = 0 }", "engine.max_running", "1 or more"),
        ('engine = { blas = "off" }', "engine.blas", "only in [engine]"),
        ("engine = { step_lock = true }", "engine.step_lock", "only in [engine]"),
        ("engine = { draft = 1 }", "engine.draft", "expected a string"),
        ('engine = { draft = "a b" }', "engine.draft", "without spaces"),
        ("engine = { draft_tokens = 0 }", "engine.draft_tokens", f"expected an integer 1{TO}16"),
        ("engine = { draft_tokens = 17 }", "engine.draft_tokens", f"expected an integer 1{TO}16"),
        ("engine = { drafts = 1 }", "engine.drafts", "did you mean draft?"),
        ('draft = "a"', "draft", "did you mean engine.draft?"),
        ('adapter = "/x"', "adapter", "did you mean adapters?"),
        ("adapters = []", "adapters", "expected a table"),
        ("adapters = { a = 1 }", "adapters.a", "expected a path, got 1"),
        ('adapters = { a = "" }', "adapters.a", "expected a path"),
        ('adapters = { "a b" = "/x" }', 'adapters."a b"', "without spaces"),
        ('adapters = { "" = "/x" }', 'adapters.""', "expected a name"),
        ('adapters = { qwen2.5 = "/x" }', "adapters.qwen2", "a name with a dot in it needs quotes"),
        ('adapters = { m = "/x" }', "adapters.m", 'expected a name of its own, but "m" is already a model'),
        ('aliases = ["a"]\nadapters = { a = "/x" }', "adapters.a", 'already an alias of "m"'),
        ('adapters = { p = "/x" }\npresets = [{ name = "p" }]', "presets[0].name", 'already an adapter of "m"'),
        ("sampling = []", "sampling", "expected a table"),
        ("sampling = { temprature = 1 }", "sampling.temprature", "did you mean temperature?"),
        ("sampling = { temperature = -0.1 }", "sampling.temperature", f"expected a number 0{TO}5"),
        ('sampling = { temperature = "1" }', "sampling.temperature", "expected a number"),
        ("sampling = { temperature = true }", "sampling.temperature", "expected a number"),
        ("sampling = { temperature = nan }", "sampling.temperature", "expected a number"),
        ("sampling = { top_p = 0 }", "sampling.top_p", "above 0, up to 1"),
        ("sampling = { top_p = 1.1 }", "sampling.top_p", "above 0, up to 1"),
        ("sampling = { top_k = -1 }", "sampling.top_k", "0 or more"),
        ("sampling = { top_k = 1.5 }", "sampling.top_k", "expected an integer"),
        ("sampling = { min_p = 2 }", "sampling.min_p", f"expected a number 0{TO}1"),
        ("sampling = { seed = -1 }", "sampling.seed", "expected an integer"),
        ("sampling = { max_tokens = 0 }", "sampling.max_tokens", "1 or more"),
        ('sampling = { stop = "" }', "sampling.stop", "not empty"),
        ("sampling = { stop = [1] }", "sampling.stop", "expected a string, got 1"),
        ("sampling = { repetition_penalty = 0 }", "sampling.repetition_penalty", "above 0"),
        ("sampling = { presence_penalty = 3 }", "sampling.presence_penalty", "from -2 to 2"),
        ("sampling = { frequency_penalty = -3 }", "sampling.frequency_penalty", "from -2 to 2"),
        ("presets = {}", "presets", "expected an array of tables"),
        ("presets = [1]", "presets[0]", "expected a table"),
        ("presets = [{}]", "presets[0].name", "expected a name"),
        ('presets = [{ name = "m" }]', "presets[0].name", "already a model"),
        ('presets = [{ name = "p" }, { name = "p" }]', "presets[1].name", 'already a preset of "m"'),
        ('aliases = ["p"]\npresets = [{ name = "p" }]', "presets[0].name", 'already an alias of "m"'),
        ('presets = [{ name = "p", ttl = 1 }]', "presets[0].ttl", "unknown key"),
        ('presets = [{ name = "p", template = 1 }]', "presets[0].template", "expected a table"),
        ('presets = [{ name = "p", template = { messages = 1 } }]', "presets[0].template.messages", "the daemon sets"),
        ('presets = [{ name = "p", template = { at = 1979-05-27 } }]', "presets[0].template.at", "expected strings"),
        ('presets = [{ name = "p", template = { a = [{ b = inf }] } }]', "presets[0].template.a", "expected strings"),
        ('presets = [{ name = "p", sampling = { top_p = 2 } }]', "presets[0].sampling.top_p", "up to 1"),
    ],
)
def test_a_wrong_model_entry_is_refused_by_name(machine, body, key, reason):
    problem = machine.problem(f'[[model]]\nname = "m"\n{body}')
    assert problem.key == f"model.m.{key}"
    assert reason in problem.message


@pytest.mark.parametrize("name", ["", "a b", "a\\tb", "/a", "a//b", "a/..", "x" * 201])
def test_a_name_that_cannot_be_part_of_a_url_is_refused(machine, name):
    assert machine.problem(f'[[model]]\nname = "{name}"').message.startswith("expected a name")


def test_an_entry_without_a_name_is_refused_at_its_own_line(machine):
    problem = machine.problem('[[model]]\nname = "a"\n[[model]]\nttl = 1')
    assert (problem.key, problem.line) == ("model[1].name", 3)


def test_names_are_unique_over_all_entries(machine):
    text = """
    [[model]]
    name = "a"
    aliases = ["x", "b"]
    [[model]]
    name = "b"
    aliases = ["x"]
    [[model]]
    name = "a"
    """
    assert [(problem.key, problem.line) for problem in machine.problems(text)] == [
        ("model.a.aliases", 4),
        ("model.b.aliases", 7),
        ("model.a.name", 9),
    ]
