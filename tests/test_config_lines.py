"""Every key of a TOML text is found at its line."""

from __future__ import annotations

import json

import tomli
from config_machine import as_toml
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxd.daemon.config_errors import dotted
from mlxd.daemon.config_lines import key_lines

VALUES = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "a", '"]', "},\n#", "'''", '\\"', "[x]\n= 1"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b.c", "d e"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(["k", "l", "m n"]), VALUES, max_size=3), st.sampled_from(["\n", " # [c]\n"]))
def test_every_key_of_a_text_has_its_line(document, end):
    text, expected = "", {}
    for key, value in document.items():
        text += f"# a = [\n{json.dumps(key)} = "
        for path in _paths(value, (key,)):
            expected[path] = text.count("\n") + 1
        text += as_toml(value) + end
    assert tomli.loads(text) == document
    assert key_lines(text) == expected


def _paths(value, at):
    yield at
    elements = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, element in elements:
        yield from _paths(element, (*at, key))


def test_lines_are_counted_through_every_form_ofas_toml():
    text = '''
a = """x
[no] = 1 \\""" ""still"""""  # comment
b.'c' = \'\'\'
d = 2
\'\'\'
[t . "u v"]
k = [ "]", # "
  { q = 1,
    r = [1,
      2] } ]
[[e]]
[e.f]
x = 07:32:00
[[e]]
[[e.g]]
[[e.g]]
y = 1.5e3
'''
    tomli.loads(text)
    lines = {dotted(path): line for path, line in key_lines(text).items()}
    assert lines == {
        "a": 2,
        "b": 4,
        "b.c": 4,
        "t": 7,
        't."u v"': 7,
        't."u v".k': 8,
        't."u v".k[0]': 8,
        't."u v".k[1]': 9,
        't."u v".k[1].q': 9,
        't."u v".k[1].r': 10,
        't."u v".k[1].r[0]': 10,
        't."u v".k[1].r[1]': 11,
        "e": 12,
        "e[0]": 12,
        "e[0].f": 13,
        "e[0].f.x": 14,
        "e[1]": 15,
        "e[1].g": 16,
        "e[1].g[0]": 16,
        "e[1].g[1]": 17,
        "e[1].g[1].y": 18,
    }
