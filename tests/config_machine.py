"""A home folder with a configuration file, for tests of the configuration."""

from __future__ import annotations

import json

import pytest

from mlxd.daemon.config import ConfigError, load_config

ENTRY = """
[[model]]
name = "qwen"
path = "~/models/Qwen3-8B-4bit"
aliases = ["gpt-4o", "default-chat"]
pinned = false
ttl = "10m"
adapters = { law = "~/adapters/law", "org/med-1.5" = "/adapters/med" }
engine = { isolation = "process", max_running = 8, draft = "small", draft_tokens = 2 }
sampling = { temperature = 0.7, top_p = 0.9 }
presets = [{ name = "qwen-nothink", sampling = { temperature = 0 }, template = { enable_thinking = false } }]
"""


class Machine:
    """A home folder, a configuration file in it, and an environment."""

    def __init__(self, home):
        self.home = home
        self.file = home / "conf" / "mlxd.toml"
        self.file.parent.mkdir()

    def load(self, text=None, flags=(), path=None, **environ):
        if text is not None:
            self.file.write_text(text)
            path = self.file
        return load_config(dict(flags), {"HOME": str(self.home), **environ}, path)

    def problems(self, text=None, **given):
        with pytest.raises(ConfigError) as raised:
            self.load(text, **given)
        return raised.value.problems

    def problem(self, text=None, **given):
        [problem] = self.problems(text, **given)
        return problem


def as_toml(value):
    """JSON data as a TOML value."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {as_toml(element)}" for key, element in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ",".join(as_toml(element) for element in value) + "]"
    return json.dumps(value)
