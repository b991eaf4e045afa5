"""What a name in a request means."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxd.registry.names import AmbiguousModel, NameTable, Resolved, UnknownModel
from mlxd.registry.spec import ModelSpec


def table(*names: str, **aliases: tuple[str, ...]) -> NameTable:
    specs = [ModelSpec(name, Path("/m") / name) for name in names]
    specs += [ModelSpec(name, Path("/m") / name, aliases=given) for name, given in aliases.items()]
    return NameTable.build(specs)


def meaning(names: NameTable, name: str | None, default: str = "") -> str:
    return names.resolve(name, default).model


def test_an_exact_name_an_alias_and_a_preset_are_found():
    names = NameTable.build([ModelSpec("qwen", Path("/m"), aliases=("gpt-4o",), presets=("qwen-cold",))])
    assert names.resolve("qwen", "") == Resolved("qwen")
    assert names.resolve("gpt-4o", "") == Resolved("qwen")
    assert names.resolve("qwen-cold", "") == Resolved("qwen", "qwen-cold")
    assert names.conflicts == ()


def test_an_exact_name_wins_over_another_letter_case():
    names = table("Qwen", "qwen", "QWEN")
    for name in ("Qwen", "qwen", "QWEN"):
        assert meaning(names, name) == name


def test_letter_case_is_overlooked_when_only_one_model_fits():
    names = NameTable.build([ModelSpec("Qwen3-8B", Path("/m"), aliases=("QWEN3-8b", "Fast"), presets=("Cold",))])
    assert meaning(names, "qwen3-8B") == "Qwen3-8B"
    assert meaning(names, "fast") == "Qwen3-8B"
    assert names.resolve("COLD", "") == Resolved("Qwen3-8B", "Cold")


def test_a_name_that_fits_several_models_but_for_case_is_ambiguous():
    with pytest.raises(AmbiguousModel, match="'qWEN'") as caught:
        table("Qwen", "qwen").resolve("qWEN", "")
    assert caught.value.candidates == ("Qwen", "qwen")
    assert "Qwen, qwen" in str(caught.value)


def test_the_last_part_of_a_name_is_enough_when_it_is_unique():
    names = table("mlx-community/Qwen3-8B", "org/other")
    assert meaning(names, "Qwen3-8B") == "mlx-community/Qwen3-8B"
    assert meaning(names, "qwen3-8b") == "mlx-community/Qwen3-8B"


def test_a_full_name_wins_over_the_last_part_of_another():
    assert meaning(table("org/small", "small"), "small") == "small"
    assert meaning(table("org/small", "SMALL"), "small") == "SMALL"


def test_a_last_part_that_several_names_share_is_ambiguous():
    with pytest.raises(AmbiguousModel) as caught:
        table("a/m", "b/M").resolve("m", "")
    assert caught.value.candidates == ("a/m", "b/M")


def test_an_alias_with_a_slash_has_no_short_form():
    with pytest.raises(UnknownModel):
        table(qwen=("openai/gpt",)).resolve("gpt", "")


def test_the_latest_tag_means_the_bare_name():
    names = NameTable.build([ModelSpec("org/Qwen", Path("/m"), aliases=("chat",), presets=("cold",))])
    assert meaning(names, "org/Qwen:latest") == "org/Qwen"
    assert meaning(names, "qwen:latest") == "org/Qwen"
    assert meaning(names, "chat:latest") == "org/Qwen"
    assert names.resolve("cold:latest", "").preset == "cold"


def test_a_model_that_is_really_called_latest_wins():
    assert meaning(table("m", "m:latest"), "m:latest") == "m:latest"


@pytest.mark.parametrize("name", [":latest", "m:8b", "m:latest:latest", "m ", "", "*", "m/", "/m"])
def test_nothing_else_is_guessed(name: str):
    with pytest.raises(UnknownModel):
        table("m").resolve(name, "")


def test_the_default_is_served_only_when_no_name_is_given():
    names = table("m", "other")
    assert meaning(names, None, "m") == "m"
    assert meaning(names, "", "m") == "m"
    with pytest.raises(UnknownModel) as caught:
        names.resolve("gpt-4", "m")
    assert caught.value.name == "gpt-4"


def test_without_a_name_and_a_default_the_error_says_what_to_do():
    with pytest.raises(UnknownModel, match=r"models\.default"):
        table("m").resolve(None, "")
    with pytest.raises(UnknownModel, match="'gone'"):
        table("m").resolve(None, "gone")


def test_similar_names_are_suggested_at_most_three():
    names = table("mlx-community/Qwen3-8B-4bit", "qwen3-4b", "qwen3-1b", "qwen3-2b", "llama")
    with pytest.raises(UnknownModel) as caught:
        names.resolve("qwen3-3b", "")
    assert len(caught.value.suggestions) == 3
    assert set(caught.value.suggestions) < {"qwen3-4b", "qwen3-1b", "qwen3-2b", "mlx-community/Qwen3-8B-4bit"}
    assert "did you mean" in str(caught.value)


@pytest.mark.parametrize("name", ["Qwen3-8B-4bits", "QWEN3-8B-4BITT", "qwen3-8b-4bit:8b", "qwn3-8b-4bit:latest"])
def test_a_typo_in_the_last_part_is_suggested_with_the_full_name(name: str):
    with pytest.raises(UnknownModel) as caught:
        table("mlx-community/Qwen3-8B-4bit", "llama").resolve(name, "")
    assert caught.value.suggestions == ("mlx-community/Qwen3-8B-4bit",)


def test_aliases_and_presets_are_suggested_too():
    names = NameTable.build([ModelSpec("qwen", Path("/m"), aliases=("default-chat",), presets=("nothink",))])
    for typo, known in (("defualt-chat", "default-chat"), ("nothing", "nothink")):
        with pytest.raises(UnknownModel) as caught:
            names.resolve(typo, "")
        assert caught.value.suggestions == (known,)


def test_with_nothing_similar_the_error_says_where_to_look():
    with pytest.raises(UnknownModel, match="mlxd list") as caught:
        table("m").resolve("something else", "")
    assert caught.value.suggestions == ()
    with pytest.raises(UnknownModel):
        NameTable.build([]).resolve("m", "")


def test_an_absurdly_long_name_is_answered_shortly():
    with pytest.raises(UnknownModel) as caught:
        table("m").resolve("x" * 5_000_000, "")
    assert len(str(caught.value)) < 500


def test_a_model_wins_over_an_alias_and_an_alias_over_a_preset():
    first = ModelSpec("first", Path("/1"), aliases=("second", "shared"), presets=("shared", "first"))
    second = ModelSpec("second", Path("/2"), aliases=("shared",), presets=("mine",))
    names = NameTable.build([first, second])
    assert names.resolve("second", "") == Resolved("second")
    assert names.resolve("shared", "") == Resolved("first")
    assert names.resolve("first", "") == Resolved("first")
    assert names.resolve("mine", "") == Resolved("second", "mine")
    assert len(names.conflicts) == 4
    assert "the alias 'second' of first has no effect: the name means second" in names.conflicts


def test_a_shared_last_part_is_told_with_what_it_means():
    assert table("a/m", "b/M", "c/n", "n").conflicts == (
        "m alone is ambiguous (a/m, b/M); clients must send the full name",
        "n means the model of exactly that name, not c/n",
    )


def test_an_alias_that_is_the_last_part_of_another_model_is_told():
    assert table("org/qwen", small=("qwen",)).conflicts == ("qwen means small, of which it is a name, not org/qwen",)


def test_an_alias_that_is_the_last_part_of_its_own_model_is_no_conflict():
    assert table(**{"org/qwen": ("qwen",)}).conflicts == ()


def test_names_that_differ_in_case_alone_are_told_unless_they_mean_the_same():
    assert table("Qwen", "qwen").conflicts == (
        "Qwen, qwen differ in letter case alone; clients must send one of them exactly",
    )
    assert table(qwen=("QWEN",)).conflicts == ()
