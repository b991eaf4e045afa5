"""Models that come into the folders, change there or leave: taken over when it is quiet, and never under a request."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from api_fakes import live
from reload_daemon import settings_for, watched
from structlog.testing import capture_logs
from tiny_models import place_models

from mlxd.daemon.catalog import Catalog
from mlxd.daemon.catalog_basis import Basis
from mlxd.daemon.catalog_merge import merge
from mlxd.daemon.folder_look import look_at
from mlxd.daemon.model_watch import ModelWatch
from mlxd.daemon.settings import ModelSettings, ModelsSettings, Settings
from mlxd.memory.estimates import ModelEstimate
from mlxd.registry.names import NameTable
from mlxd.registry.spec import ModelSpec

# ---- what may be taken over


def spec(name, key="1", **changes):
    return ModelSpec(name, Path("/m") / name, load_key=key, **changes)


def catalog(*specs, size=1):
    estimates = {each.path: ModelEstimate(weight_bytes=size) for each in specs}
    return Catalog(specs, NameTable.build(specs), basis=Basis(estimates=estimates))


def merged(known, fresh, *, resident=(), troubled=(), changing=()):
    unsettled = {Path("/m") / name for name in changing}
    return merge(known, fresh, resident=resident, troubled=troubled, settled=lambda path: path not in unsettled)


def keys(found):
    return {each.name: each.load_key for each in found.catalog.specs}


def test_models_come_change_and_go():
    found = merged(catalog(spec("a"), spec("b"), spec("c")), catalog(spec("a"), spec("b", "2"), spec("d")))
    assert keys(found) == {"a": "1", "b": "2", "d": "1"}
    assert found.deferred == frozenset()
    assert set(found.catalog.names.exact) == {"a", "b", "d"}


def test_a_model_in_memory_stays_as_it_is_until_it_has_left():
    known, fresh = catalog(spec("a"), spec("b"), size=1), catalog(spec("a", "2"), size=9)
    found = merged(known, fresh, resident={"a", "b"})
    assert keys(found) == {"a": "1", "b": "1"}
    assert found.deferred == {"a", "b"}
    assert found.catalog.basis.estimates[Path("/m/a")].weight_bytes == 1
    assert keys(merged(found.catalog, fresh, resident={"b"})) == {"a": "2", "b": "1"}
    assert keys(merged(found.catalog, fresh)) == {"a": "2"}


def test_what_is_live_changes_for_a_model_in_memory_too():
    found = merged(catalog(spec("a")), catalog(spec("a", weight_bytes=5)), resident={"a"})
    assert found.catalog.specs[0].weight_bytes == 5
    assert found.deferred == frozenset()


def test_a_folder_that_is_still_changing_is_left_for_the_next_look():
    known = catalog(spec("a"), spec("b"))
    found = merged(known, catalog(spec("a", "2"), spec("new")), changing={"a", "b", "new"})
    assert keys(found) == {"a": "1", "b": "1"}
    assert found.deferred == frozenset()


def test_a_changing_draft_or_adapter_counts_as_its_model():
    new = [spec("x", draft=Path("/m/d")), spec("y", adapter=Path("/m/d")), spec("z")]
    assert keys(merged(catalog(), catalog(*new), changing={"d"})) == {"z": "1"}


def test_what_an_entry_cannot_mean_any_more_stays():
    known = catalog(spec("a"), spec("b"))
    assert keys(merged(known, catalog(spec("a", "2")), troubled={"a", "b", "new"})) == {"a": "1", "b": "1"}


# ---- what a look sees


def model_at(folder, text="{}"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(text)
    return folder


def look(*dirs, **settings):
    return look_at(Settings(models=ModelsSettings(dirs=dirs), **settings), None)


def test_a_look_sees_model_folders_two_levels_deep_and_those_of_entries(tmp_path):
    folders = {model_at(tmp_path / "m" / name) for name in ("a", "org/b")}
    model_at(tmp_path / "m" / "org" / "x" / "deep")
    model_at(tmp_path / "m" / ".hidden")
    elsewhere, law = model_at(tmp_path / "e"), model_at(tmp_path / "law")
    entry = ModelSettings("e", path=elsewhere, adapters={"law": law, "gone": tmp_path / "gone"})
    seen = look(tmp_path / "m", model=(entry,))
    assert seen.stamps.keys() == {*folders, elsewhere, law}
    assert seen.unreadable == frozenset()


def test_a_look_sees_the_hub_cache_as_far_as_it_is_used(tmp_path):
    snapshot = model_at(tmp_path / "models--org--m" / "snapshots" / "abc")
    for used, entries in ((True, ()), (False, (ModelSettings("m", repo="org/m"),))):
        settings = Settings(models=ModelsSettings(dirs=(), hf_cache=used), model=entries)
        assert look_at(settings, tmp_path).stamps.keys() == {snapshot}
    assert look_at(Settings(models=ModelsSettings(dirs=(), hf_cache=False)), tmp_path).stamps == {}


def test_two_looks_agree_on_what_did_not_change_between_them(tmp_path):
    a, b = model_at(tmp_path / "a"), model_at(tmp_path / "b")
    first = look(tmp_path)
    model_at(b, '{"x": 1}')
    second = look(tmp_path)
    assert first.agrees(second, a)
    assert not first.agrees(second, b)
    assert first.agrees(second, tmp_path / "never")


def test_looks_agree_on_nothing_in_a_folder_that_could_not_be_read(tmp_path):
    a = model_at(tmp_path / "m" / "a")
    whole = look(tmp_path / "m")
    (tmp_path / "m").rename(tmp_path / "away")
    gone = look(tmp_path / "m")
    assert gone.unreadable == {tmp_path / "m"}
    assert not gone.agrees(gone, a)
    assert not whole.agrees(gone, a)


def test_a_pipe_in_a_folder_does_not_hold_a_look(tmp_path):
    os.mkfifo(model_at(tmp_path / "a") / "generation_config.json")
    assert [name for name, *_ in look(tmp_path).stamps[tmp_path / "a"]] == ["config.json"]


# ---- the watch over a daemon's folders


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def listed(daemon):
    return [each.name for each in daemon.live.catalog.specs]


def decided(daemon):
    return [(d.reason, d.inputs["models"]) for d in daemon.registry.last_decisions(100) if d.kind == "reload"]


async def test_a_model_that_came_is_listed_at_the_second_look(folder):
    async with watched(folder) as daemon:
        model_at(folder / "new")
        await daemon.watch.look()
        assert listed(daemon) == []
        await daemon.watch.look()
        assert listed(daemon) == ["new"]
        [(reason, models)] = decided(daemon)
        assert (reason, models["added"]) == ("folders", ("new",))
        assert daemon.live.names.resolve("new", "").model == "new"
        assert daemon.registry.model("new").state == "unloaded"


async def test_a_half_copied_model_waits_until_it_is_quiet_for_one_look(folder):
    async with watched(folder) as daemon:
        for size in range(3):
            model_at(folder / "new")
            (folder / "new" / "model.safetensors").write_bytes(b"x" * size)
            model_at(folder / "other")
            await daemon.watch.look()
            assert "new" not in listed(daemon)
        await daemon.watch.look()
        assert listed(daemon) == ["new", "other"]


async def test_a_model_that_vanished_is_dropped_at_the_second_look(folder):
    model_at(folder / "a")
    async with watched(folder) as daemon:
        shutil.rmtree(folder / "a")
        await daemon.watch.look()
        assert listed(daemon) == ["a"]
        await daemon.watch.look()
        assert listed(daemon) == []


async def test_looks_that_find_nothing_new_change_nothing(folder):
    model_at(folder / "a")
    async with watched(folder) as daemon:
        before = daemon.live.now
        for _ in range(3):
            await daemon.watch.look()
        assert daemon.live.now is before
        assert decided(daemon) == []


async def test_a_folder_that_cannot_be_read_keeps_its_models(folder):
    model_at(folder / "a")
    async with watched(folder) as daemon:
        folder.rename(folder.with_name("away"))
        for _ in range(3):
            await daemon.watch.look()
        assert listed(daemon) == ["a"]
        folder.with_name("away").rename(folder)
        shutil.rmtree(folder / "a")
        for _ in range(2):
            await daemon.watch.look()
        assert listed(daemon) == []


async def test_a_model_in_memory_outlives_its_files_and_goes_when_it_is_unloaded(folder, micro_model):
    place_models(folder, {"a": micro_model})
    async with watched(folder) as daemon:
        await daemon.registry.load("a")
        shutil.rmtree(folder / "a")
        for _ in range(3):
            await daemon.watch.look()
        assert daemon.registry.model("a").state == "ready"
        assert listed(daemon) == ["a"]
        await daemon.registry.unload("a")
        await daemon.watch.look()
        assert listed(daemon) == []


async def test_a_model_in_memory_is_not_touched_when_its_files_change(folder, micro_model, tiny_model):
    place_models(folder, {"a": micro_model})
    async with watched(folder) as daemon:
        await daemon.registry.load("a")
        before = daemon.registry.model("a").spec
        shutil.rmtree(folder / "a")
        place_models(folder, {"a": tiny_model})
        for _ in range(3):
            await daemon.watch.look()
        assert daemon.registry.model("a").state == "ready"
        assert daemon.registry.model("a").spec == before
        await daemon.registry.unload("a")
        await daemon.watch.look()
        after = daemon.registry.model("a").spec
        assert after.load_key != before.load_key
        assert after.weight_bytes > before.weight_bytes


async def test_a_reload_that_is_asked_for_does_not_spare_models_in_memory(folder, micro_model):
    place_models(folder, {"a": micro_model, "b": micro_model})
    async with watched(folder) as daemon:
        await daemon.registry.load("a")
        await daemon.registry.load("b")
        shutil.rmtree(folder / "a")
        diff = await daemon.reloader.reload("operator")
        assert diff.models.removed == ("a",)
        assert daemon.registry.model("b").state == "ready"


def hide(folder, stand_in):
    """Take a folder away; a file may stand in its place."""
    folder.rename(folder.with_name("away"))
    if stand_in:
        folder.write_text("")


def bring_back(folder):
    folder.unlink(missing_ok=True)
    folder.with_name("away").rename(folder)


@pytest.mark.parametrize("stand_in", [False, True])
async def test_a_reload_keeps_the_models_of_a_folder_that_cannot_be_read(folder, micro_model, stand_in):
    place_models(folder, {"a": micro_model, "org/b": micro_model})
    entries = (ModelSettings("a", aliases=("x",)), ModelSettings("c", path=folder / "org" / "b"))
    async with watched(folder, default="a", preload=("x",), model=entries) as daemon:
        await daemon.registry.load("a")
        before = daemon.live.catalog
        hide(folder, stand_in)
        diff = await daemon.reloader.reload("operator")
        assert diff.is_empty
        [note] = diff.notes
        assert note.startswith(f"{folder} cannot be read: ")
        assert daemon.live.catalog.specs == before.specs
        assert daemon.live.catalog.basis.seen.stamps == before.basis.seen.stamps
        assert daemon.registry.model("a").state == "ready"
        bring_back(folder)
        for _ in range(3):
            await daemon.watch.look()
        assert daemon.live.catalog.specs == before.specs
        assert listed(daemon) == ["a", "c"]


async def test_a_reload_applies_what_the_file_says_of_a_model_that_cannot_be_read(folder):
    model_at(folder / "a")
    entries = ()
    async with watched(folder, read=lambda: settings_for(folder, entries)) as daemon:
        hide(folder, stand_in=False)
        entries = (ModelSettings("a", aliases=("x",), ttl=5.0),)
        assert (await daemon.reloader.reload("operator")).models.changed == ("a",)
        assert daemon.live.names.resolve("x", "").model == "a"
        assert daemon.registry.model("a").spec.ttl == 5.0


async def test_a_reload_drops_the_models_of_a_folder_that_is_not_configured_any_more(folder):
    model_at(folder / "a")
    other = folder.with_name("other")
    other.mkdir()
    async with watched(folder, read=lambda: settings_for(other)) as daemon:
        hide(folder, stand_in=False)
        assert (await daemon.reloader.reload("operator")).models.removed == ("a",)


async def test_a_model_that_changed_where_it_could_not_be_seen_is_found_changed(folder):
    model_at(folder / "a")
    async with watched(folder) as daemon:
        before = daemon.registry.model("a").spec.load_key
        hide(folder, stand_in=False)
        await daemon.reloader.reload("operator")
        model_at(folder.with_name("away") / "a", '{"x": 1}')
        assert daemon.registry.model("a").spec.load_key == before
        bring_back(folder)
        for _ in range(2):
            await daemon.watch.look()
        assert daemon.registry.model("a").spec.load_key != before


@pytest.mark.parametrize("looks", [0, 1, 3])
@pytest.mark.parametrize("mount", [False, True])
async def test_models_that_a_reload_removed_are_found_again_when_they_come_back(folder, mount, looks):
    model_at(folder / "a")
    place = folder if mount else folder / "a"
    async with watched(folder) as daemon:
        await daemon.watch.look()
        place.rename(folder.with_name("away"))
        folder.mkdir(exist_ok=True)  # an unmounted disk leaves an empty folder
        assert (await daemon.reloader.reload("operator")).models.removed == ("a",)
        for _ in range(looks):
            await daemon.watch.look()
        if mount:
            folder.rmdir()
        folder.with_name("away").rename(place)
        for _ in range(2):
            await daemon.watch.look()
        assert listed(daemon) == ["a"]


async def test_a_look_before_a_reload_and_one_after_it_find_what_the_reload_did_not_see(folder):
    async with watched(folder) as daemon:
        model_at(folder / "a")
        await daemon.watch.look()
        (folder / "a").rename(folder.with_name("away"))
        await daemon.reloader.reload("operator")
        folder.with_name("away").rename(folder / "a")
        await daemon.watch.look()
        assert listed(daemon) == ["a"]


async def test_a_failed_model_is_tried_again_once_its_files_changed(folder, micro_model):
    place_models(folder, {"a": micro_model})
    weights = (folder / "a" / "model.safetensors").read_bytes()
    (folder / "a" / "model.safetensors").unlink()
    async with watched(folder) as daemon:
        await daemon.registry.load("a", wait=False)
        with pytest.raises(Exception, match="could not be loaded"):
            await daemon.registry.load("a")
        assert daemon.registry.model("a").state == "failed"
        (folder / "a" / "model.safetensors").write_bytes(weights)
        for _ in range(2):
            await daemon.watch.look()
        assert daemon.registry.model("a").failure is None
        async with daemon.registry.lease("a"):
            assert daemon.registry.model("a").state == "ready"


async def test_a_default_whose_folder_vanished_is_noted_and_the_rest_goes_on(folder):
    model_at(folder / "a")
    async with watched(folder, default="a") as daemon:
        shutil.rmtree(folder / "a")
        model_at(folder / "b")
        with capture_logs() as logs:
            for _ in range(4):
                await daemon.watch.look()
        assert listed(daemon) == ["b"]
    assert [log["note"] for log in logs if log["event"] == "models.note"] == ["models.default: there is no model 'a'"]


async def test_a_model_whose_entry_cannot_be_followed_any_more_stays_known(folder):
    model_at(folder / "a")
    async with watched(folder, model=(ModelSettings("a", aliases=("x",)),)) as daemon:
        shutil.rmtree(folder / "a")
        model_at(folder / "b")
        for _ in range(2):
            await daemon.watch.look()
        assert listed(daemon) == ["a", "b"]
        assert daemon.live.names.resolve("x", "").model == "a"


async def test_an_interval_that_was_never_counts_at_once_when_it_changes(folder):
    called = asyncio.Event()

    async def refresh(_):
        called.set()
        return frozenset()

    def settings(interval):
        return Settings(models=ModelsSettings(dirs=(folder,), watch_interval=interval))

    now = live(settings(None), ())
    watch = ModelWatch(now, None, refresh, lambda _: False)
    model_at(folder / "a")
    running = asyncio.create_task(watch.run())
    await asyncio.sleep(0)  # the watch pauses for ever
    now.swap(settings(0.01), now.catalog)
    watch.hurry()
    await called.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_look_that_fails_is_not_the_last_one(folder):
    calls = asyncio.Queue()

    async def refresh(settle):
        calls.put_nowait(settle)
        raise RuntimeError("a disk that is odd")

    settings = Settings(models=ModelsSettings(dirs=(folder,), watch_interval=0.01))
    watch = ModelWatch(live(settings, ()), None, refresh, lambda _: False)
    model_at(folder / "a")
    with capture_logs() as logs:
        running = asyncio.create_task(watch.run())
        for _ in range(2):
            await calls.get()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert {log["event"] for log in logs} == {"models.watch_broke"}
