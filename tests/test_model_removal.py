"""A model is deleted whole, at once, and only if nobody uses it and its folder is the daemon's to delete."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest
from daemon_process import Api, daemon
from tiny_models import place_models

from mlxd.daemon.downloads.places import removed_folder
from mlxd.daemon.model_removal import InMemory, ModelRemover, NotRemovable, Removal, Use, bury, plan_removal, take_away
from mlxd.daemon.settings import ModelSettings, ModelsSettings, Settings
from mlxd.registry.spec import ModelSpec

HOME, CACHE = Path("/models"), Path("/cache/hub")
CONFIG = """
[models]
watch_interval = "never"

[[model]]
name = "kept"
aliases = ["gpt"]

[[model]]
name = "elsewhere"
path = "{outside}"
"""


def planned(name, path, *, cache=CACHE, adapter=None, **settings):
    models = ModelsSettings(**{"dirs": (HOME, Path("/more")), **settings.pop("models", {})})
    return plan_removal(ModelSpec(name, Path(path), adapter=adapter), Settings(models=models, **settings), cache)


def test_a_folder_below_one_of_the_configured_ones_is_planned_for():
    assert planned("m", "/models/m") == Removal(Path("/models/m"), HOME)
    assert planned("o/m", "/more/o/m", cache=None) == Removal(Path("/more/o/m"), Path("/more"))
    assert planned("m", "/models/o/m", models={"dirs": (HOME, HOME / "o")}) == Removal(HOME / "o/m", HOME / "o")


@pytest.mark.parametrize(
    ("name", "path", "options", "words"),
    [
        ("m", "/models", {}, "none of models.dirs"),
        ("m", "/other/m", {}, "none of models.dirs"),
        ("o/m", "/cache/hub/models--o--m/snapshots/x", {}, "hf cache rm"),
        ("o", "/models/o", {"models": {"dirs": (HOME, HOME / "o")}}, "/models/o of models.dirs"),
        ("o", "/models/o", {"models": {"dirs": (HOME, HOME / "o/in")}}, "/models/o/in of models.dirs"),
        ("m", "/models/base", {"adapter": Path("/models/a")}, "adapter"),
        ("m", "/models/m", {"models": {"default": "m"}}, "models.default"),
        ("m", "/models/m", {"models": {"preload": ("m",)}}, "models.preload"),
        ("m", "/models/m", {"model": (ModelSettings("m"),)}, "[[model]]"),
        ("m", "/models/m", {"model": (ModelSettings("big", engine={"draft": "m"}),)}, "engine.draft"),
    ],
)
def test_what_is_not_the_daemons_to_delete_is_refused(name, path, options, words):
    with pytest.raises(NotRemovable) as caught:
        planned(name, path, **options)
    assert words in str(caught.value)


def remove(removal, *uses):
    moved, size = take_away(removal, uses)
    bury(moved, removal)
    return size


def test_the_folder_goes_with_its_empty_parent_and_nothing_else(tmp_path):
    for name in ("org/one", "org/two"):
        (tmp_path / name / "1_Pooling").mkdir(parents=True)
        (tmp_path / name / "weights").write_bytes(b"12345")
        (tmp_path / name / "1_Pooling" / "config.json").write_bytes(b"67")
    assert remove(Removal(tmp_path / "org" / "one", tmp_path)) == 7
    assert [path.name for path in (tmp_path / "org").iterdir()] == ["two"]
    assert remove(Removal(tmp_path / "org" / "two", tmp_path)) == 7
    assert not (tmp_path / "org").exists()
    assert list(removed_folder(tmp_path).iterdir()) == []


def test_a_link_is_deleted_and_never_what_it_leads_to(tmp_path):
    outside, home = tmp_path / "outside", tmp_path / "models"
    (outside / "m").mkdir(parents=True)
    (outside / "m" / "weights").write_bytes(b"12345")
    home.mkdir()
    (home / "m").symlink_to(outside / "m")
    (home / "org").symlink_to(outside)
    assert remove(Removal(home / "m", home)) == 0
    with pytest.raises(NotRemovable, match="is a link out of"):
        remove(Removal(home / "org" / "m", home))
    assert (outside / "m" / "weights").exists()
    assert not os.path.lexists(home / "m")


def test_a_folder_that_is_gone_is_told(tmp_path):
    with pytest.raises(NotRemovable, match="cannot be deleted"):
        remove(Removal(tmp_path / "m", tmp_path))


def test_what_another_model_reads_is_not_deleted_whatever_links_lead_there(tmp_path):
    (tmp_path / "org" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "org")
    removal = Removal(tmp_path / "org", tmp_path)
    with pytest.raises(InMemory, match="linked"):
        remove(removal, Use("linked", tmp_path / "link", in_memory=True))
    for inner in (tmp_path / "org" / "inner", tmp_path / "link" / "inner"):
        with pytest.raises(NotRemovable, match="inner is in"):
            remove(removal, Use("inner", inner, in_memory=False))
    assert remove(Removal(tmp_path / "link", tmp_path), Use("org", tmp_path / "org", in_memory=True)) == 0
    assert remove(removal, Use("other", tmp_path / "organ", in_memory=True)) == 0


async def test_a_model_that_is_asked_for_meanwhile_stays(tmp_path):
    (tmp_path / "org" / "m").mkdir(parents=True)
    removal, looks = Removal(tmp_path / "org" / "m", tmp_path), iter((False, True))
    with pytest.raises(InMemory):
        await ModelRemover().remove("m", removal, lambda: [Use("m", removal.folder, in_memory=next(looks))])
    assert removal.folder.is_dir()


async def test_what_is_taken_away_is_forgotten_whether_or_not_the_client_waits(tmp_path):
    (tmp_path / "m").mkdir()
    begun, goes_on, forgotten = threading.Event(), threading.Event(), asyncio.Event()

    async def adopt():
        begun.set()
        await asyncio.to_thread(goes_on.wait, 10)
        forgotten.set()

    deletion = asyncio.create_task(ModelRemover(None, adopt).remove("m", Removal(tmp_path / "m", tmp_path), list))
    assert await asyncio.to_thread(begun.wait, 10)
    deletion.cancel()
    await asyncio.wait({deletion})
    goes_on.set()
    await asyncio.wait_for(forgotten.wait(), 10)


async def refused(api, name, *, force=False):
    status, answer = await api.call("DELETE", f"/admin/models/{name}")
    return status, answer["error"]["code"], answer["error"]["message"]


async def test_a_model_is_deleted_once_it_is_out_of_memory(tmp_path, tiny_model, micro_model):
    models = place_models(tmp_path / "models", {"org/one": tiny_model, "kept": micro_model})
    outside = place_models(tmp_path, {"outside": micro_model}) / "outside"
    size = sum(path.stat().st_size for path in (models / "org" / "one").iterdir())
    with daemon(tmp_path / "daemon", models, CONFIG.format(outside=outside)) as running:
        async with Api(running.url) as api:
            await api.text("org/one")
            status, code, message = await refused(api, "org/one")
            assert (status, code) == (409, "model_resident")
            assert "mlxd unload org/one" in message
            assert await api.text("org/one")
            await api.call("POST", "/admin/models/org/one/unload")
            for name, expected in (
                ("one", (400, "invalid_request")),
                ("gpt", (400, "invalid_request")),
                ("kept", (409, "model_not_removable")),
                ("elsewhere", (409, "model_not_removable")),
                ("nothing", (404, "model_not_found")),
            ):
                assert (await refused(api, name))[:2] == expected
            for name in ("gpt", "elsewhere"):  # a new model there would hide another one, or be hidden
                status, answer = await api.call("POST", "/admin/pull", {"repo": "a/b", "name": name})
                assert (status, answer["error"]["param"]) == (400, "name")
            assert await api.call("DELETE", "/admin/models/org/one") == (200, {"id": "org/one", "freed_bytes": size})
            assert sorted(await api.states()) == ["elsewhere", "kept"]
            assert (await api.chat("org/one"))[0] == 404
            assert (await refused(api, "org/one"))[:2] == (404, "model_not_found")
            assert await api.text("kept")
        [deleted] = [event for event in running.events() if event["event"] == "model.deleted"]
        assert (deleted["model"], deleted["bytes"]) == ("org/one", size)
    assert sorted(path.name for path in models.iterdir() if not path.name.startswith(".")) == ["kept"]
    assert (outside / "config.json").exists()
