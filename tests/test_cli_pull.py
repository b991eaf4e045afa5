"""`mlxd pull` gets a model through the daemon, and `mlxd rm` deletes it."""

from __future__ import annotations

import json

import pytest
from cli_process import mlxd, on_terminal
from hub_server import Repo, files_in, hub_server
from pulling import CONFIG, pulling

from mlxd.daemon.cli.answers import view
from mlxd.daemon.cli.event_lines import EventLines
from mlxd.daemon.cli.failures import CommandFailed, NotReachable
from mlxd.daemon.cli.pull import watch
from mlxd.daemon.cli.pull_view import PullView

REPO, WEIGHTS = "org/tiny", "model.safetensors"
PULL = {"id": 3, "repo": REPO, "state": "downloading", "bytes_done": 450, "bytes_total": 1000}


@pytest.fixture(scope="module")
def hub(micro_model):
    with hub_server() as hub:
        hub.repos[REPO] = Repo(files_in(micro_model))
        yield hub


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pull")


@pytest.fixture(scope="module")
def running(hub, folder):
    with pulling(folder, hub, CONFIG + '[engine]\nisolation = "process"\n') as running:  # no model runs, so without MLX
        yield running


@pytest.fixture
def cli(running, tmp_path):
    def cli(*args):
        done = mlxd(*args, home=tmp_path, MLXD_URL=running.url)
        assert b"Traceback" not in done.stderr
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    return cli


def test_a_model_is_pulled_and_deleted(cli, folder):
    code, out, err = cli("pull", REPO)
    assert (code, err) == (0, "")
    assert out.startswith(f"{REPO} is there: ")
    assert f"run it:  mlxd run {REPO}" in out
    assert (folder / "models" / REPO).is_dir()
    code, out, err = cli("rm", REPO)
    assert (code, out) == (2, "")
    assert "--yes" in err
    code, out, err = cli("rm", REPO, "--yes")
    assert (code, err) == (0, "")
    assert out.startswith(f"deleted {REPO}, ")
    assert not (folder / "models" / REPO).exists()


def test_both_answer_in_json(cli):
    code, out, _ = cli("pull", REPO, "--name", "mine", "--revision", "main", "--json")
    pull = json.loads(out)
    assert (code, pull["state"], pull["name"], pull["revision"]) == (0, "done", "mine", "main")
    code, out, _ = cli("rm", "mine", "-y", "--json")
    assert (code, json.loads(out)) == (0, {"id": "mine", "freed_bytes": json.loads(out)["freed_bytes"]})


def test_what_fails_says_why(cli):
    code, out, err = cli("pull", "org/nothing")
    assert (code, out) == (1, "")
    assert "check the name" in err
    assert "(repo_not_found)" in err
    code, out, err = cli("pull", "org/nothing", "--json")
    assert (code, json.loads(out)["error"]["reason"]) == (1, "repo_not_found")
    code, _, err = cli("pull", "../x")
    assert (code, "(invalid_request)" in err) == (1, True)


def test_a_terminal_shows_the_progress_and_ctrl_c_cancels_it(cli, hub, running, tmp_path):
    hold = hub.hold(WEIGHTS, 1 << 17)
    with on_terminal("pull", REPO, "--name", "stopped", home=tmp_path, MLXD_URL=running.url) as terminal:
        terminal.wait_for("downloading")
        assert hold.reached.wait(20)
        terminal.interrupt()
        terminal.wait_for("what came is kept, the same command goes on")
        assert terminal.end() == 1
    hold.released.set()
    asked = len(hub.asked)
    assert cli("pull", REPO, "--name", "stopped")[0] == 0
    assert hub.asked[asked:] == [(WEIGHTS, f"bytes={1 << 17}-")]
    with on_terminal("rm", "stopped", home=tmp_path, MLXD_URL=running.url) as terminal:
        terminal.wait_for("Delete stopped, ")
        terminal.type("n\n")
        terminal.wait_for("nothing was deleted")
        assert terminal.end() == 1
    with on_terminal("rm", "stopped", home=tmp_path, MLXD_URL=running.url) as terminal:
        terminal.wait_for("Delete stopped, ")
        terminal.type("y\n")
        terminal.wait_for("deleted stopped, ")
        assert terminal.end() == 0


def test_who_only_watches_a_download_of_others_does_not_cancel_it(cli, hub, running, tmp_path):
    hold = hub.hold(WEIGHTS, 1 << 17)
    with on_terminal("pull", REPO, "--name", "shared", home=tmp_path, MLXD_URL=running.url) as first:
        first.wait_for("downloading")
        with on_terminal("pull", REPO, "--name", "shared", home=tmp_path, MLXD_URL=running.url) as second:
            second.wait_for("downloading")
            second.interrupt()
            assert second.end() == 1
        hold.released.set()
        first.wait_for("shared is there")
        assert first.end() == 0


@pytest.mark.parametrize("known", [[], [{**PULL, "repo": "org/other"}], [{**PULL, "name": "other"}]])
async def test_a_daemon_that_was_restarted_meanwhile_is_told_from_one_that_goes_on(known):
    class Restarted:
        async def get(self, _):
            return {"data": known}

    with pytest.raises(CommandFailed, match="restarted"):
        await watch(Restarted(), view(PULL, PullView))


async def test_a_daemon_that_ends_meanwhile_takes_nothing_of_the_download_with_it():
    class Gone:
        async def get(self, _):
            raise NotReachable("no daemon answers")

    with pytest.raises(NotReachable, match="no daemon answers\nwhat came of the download is kept"):
        await watch(Gone(), view(PULL, PullView))


def test_events_show_a_download_now_and_then():
    lines = EventLines()
    assert lines.line("pull", {"pull": {**PULL, "state": "queued", "bytes_total": 0}}) == "3 org/tiny queued"
    assert lines.line("pull", {"pull": PULL}) == "3 org/tiny downloading 40% of 1000 B"
    assert lines.line("pull", {"pull": {**PULL, "bytes_done": 480}}) is None
    assert lines.line("pull", {"pull": {**PULL, "state": "done"}}) == "3 org/tiny done"
    failed = {**PULL, "state": "failed", "error": {"reason": "gated", "message": "accept"}}
    assert lines.line("pull", {"pull": failed}) == "3 org/tiny failed: accept (gated)"
    assert lines.line("pull", {"pull": {"id": 3, "removed": True}}) is None
