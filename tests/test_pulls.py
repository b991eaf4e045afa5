"""Downloads take turns, are numbered once, and end with the daemon; what unfinished ones left goes in time."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

import pytest

from mlxd.daemon.api.feed_news import PROGRESS_INTERVAL, PullNews
from mlxd.daemon.downloads.child import NotStarted
from mlxd.daemon.downloads.messages import Done, DownloadFailed, Failed, Found, Job, Progress
from mlxd.daemon.downloads.places import HIDDEN, KEPT, begun, clean, record_of_whole, removed_folder
from mlxd.daemon.downloads.pulls import AT_A_TIME, MOST_WAITING, REMEMBERED, Pulls, TooManyPulls
from mlxd.daemon.downloads.room import MARGIN
from mlxd.registry.errors import ShuttingDown

COMMIT = "a" * 40


class Downloads:
    """Stands for the processes: each download says what a test tells it to."""

    def __init__(self):
        self.jobs: list[Job] = []
        self.left: list[str] = []
        self.fault: Exception | None = None
        self.now = 0.0
        self._said: dict[str, asyncio.Queue] = {}

    def say(self, repo, *messages):
        for message in messages:
            self._said[repo].put_nowait(message)

    @property
    def repos(self):
        return [job.repo for job in self.jobs]

    @asynccontextmanager
    async def __call__(self, job):
        if self.fault is not None:
            raise self.fault
        self.jobs.append(job)
        self._said[job.repo] = asyncio.Queue()
        try:
            yield self._messages(self._said[job.repo])
        finally:
            self.left.append(job.repo)

    async def _messages(self, queue):
        while True:
            message = await queue.get()
            if isinstance(message, Exception):
                raise message
            yield message
            if isinstance(message, Done | Failed):
                return


@pytest.fixture
def downloads():
    return Downloads()


@pytest.fixture
async def pulls(downloads, tmp_path):
    pulls = Pulls(lambda: (tmp_path,), download=downloads, clock=lambda: downloads.now, wall_clock=lambda: 5.0)
    yield pulls
    assert await pulls.close(5.0)


async def turns():
    """Let everything happen that can."""
    for _ in range(20):
        await asyncio.sleep(0)


def states(pulls):
    return [status.state for status in pulls.statuses()]


async def begin(pulls, *repos):
    numbers = [pulls.start(repo, "main", repo)[0].id for repo in repos]
    await turns()
    return numbers


async def test_two_run_and_the_others_wait_in_order(pulls, downloads):
    assert await begin(pulls, "a", "b", "c", "d") == [1, 2, 3, 4]
    assert AT_A_TIME == 2
    assert states(pulls) == ["resolving", "resolving", "queued", "queued"]
    downloads.say("b", Found(COMMIT, 0, 1, 0, 10), Done())
    await turns()
    assert states(pulls) == ["resolving", "done", "resolving", "queued"]
    assert downloads.repos == ["a", "b", "c"]


async def test_downloads_of_one_repository_never_run_at_once(pulls, downloads):
    pulls.start("a", "main", "x")
    pulls.start("a", "main", "y")
    await begin(pulls, "b")
    assert states(pulls) == ["resolving", "queued", "resolving"]
    assert pulls.start("a", "main", "y") == (pulls.status(2), False)
    assert pulls.start("a", "v2", "y")[1] is True


async def test_a_download_is_told_with_its_rate_and_time_to_go(pulls, downloads):
    await begin(pulls, "a")
    downloads.say("a", Found(COMMIT, 1, 3, 100, 1100))
    await turns()
    downloads.now = 2.0
    downloads.say("a", Progress(2, 500, False))
    await turns()
    told = pulls.status(1)
    assert (told.state, told.commit, told.files_done, told.bytes_done) == ("downloading", COMMIT, 2, 500)
    assert (told.bytes_per_s, told.eta_s) == (200.0, 3.0)
    downloads.now = 30.0
    downloads.say("a", Progress(2, 500, True))
    await turns()
    assert (pulls.status(1).state, pulls.status(1).bytes_per_s, pulls.status(1).eta_s) == ("verifying", 0.0, None)
    downloads.say("a", Done())
    await turns()
    told = pulls.status(1)
    assert (told.state, told.files_done, told.bytes_done, told.ended_at) == ("done", 3, 1100, 5.0)


async def test_a_cancelled_download_is_left_and_another_begins(pulls, downloads):
    await begin(pulls, "a", "b", "c")
    assert (await pulls.cancel(3)).state == "cancelled"
    assert (await pulls.cancel(1)).state == "cancelled"
    assert downloads.left == ["a"]
    assert await pulls.cancel(9) is None
    await begin(pulls, "d")
    assert states(pulls) == ["cancelled", "resolving", "cancelled", "resolving"]


async def test_one_that_is_cancelled_before_its_first_step_is_over(pulls, downloads):
    pulls.start("a", "main", "a")
    assert (await pulls.cancel(1)).state == "cancelled"
    assert downloads.jobs == []


async def test_what_a_process_does_wrong_ends_its_download_alone(pulls, downloads):
    await begin(pulls, "a", "b")
    downloads.say("a", ValueError("nonsense"))
    downloads.say("b", Failed("no_space", "make room", 5, 3))
    await turns()
    assert [status.error.reason for status in pulls.statuses()] == ["crashed", "no_space"]
    assert (pulls.status(2).error.needed_bytes, pulls.status(2).error.free_bytes) == (5, 3)
    downloads.fault = NotStarted("no more processes")
    await begin(pulls, "c")
    assert "no more processes" in pulls.status(3).error.message


async def test_the_last_that_ended_are_remembered_and_numbers_are_not_reused(pulls, downloads):
    told = []
    pulls.on_change = told.append
    downloads.fault = NotStarted("none")
    for n in range(REMEMBERED + 3):
        await begin(pulls, f"r{n}")
    assert [status.id for status in pulls.statuses()] == list(range(4, REMEMBERED + 4))
    assert pulls.status(1) is None
    assert {1, 2, 3} <= set(told)


async def test_those_that_are_cancelled_while_they_wait_are_forgotten_too(pulls):
    await begin(pulls, "a", "b")
    for n in range(REMEMBERED + 3):
        [number] = await begin(pulls, f"r{n}")
        await pulls.cancel(number)
    assert len(pulls.statuses()) == REMEMBERED + 2


async def test_the_room_that_others_are_still_to_take_is_not_given_twice(pulls, downloads):
    await begin(pulls, "a", "b")
    free = MARGIN + 1500
    downloads.say("a", Found(COMMIT, 0, 1, 0, 1000, free))
    downloads.say("b", Found(COMMIT, 0, 1, 400, 1000, free))
    await turns()
    assert states(pulls) == ["downloading", "failed"]
    error = pulls.status(2).error
    assert (error.reason, error.needed_bytes, error.free_bytes) == ("no_space", MARGIN + 1600, free)
    assert "1000 of them for other downloads" in error.message
    assert downloads.left == ["b"]
    downloads.say("a", Progress(0, 200, False))
    await begin(pulls, "b")
    downloads.say("b", Found(COMMIT, 0, 1, 400, 1000, free))
    await turns()
    assert states(pulls) == ["downloading", "failed", "downloading"]


async def test_not_more_than_so_many_wait(pulls):
    await begin(pulls, *(f"r{n}" for n in range(AT_A_TIME + MOST_WAITING)))
    with pytest.raises(TooManyPulls):
        pulls.start("one-more", "main", "one-more")


async def test_the_end_of_the_daemon_ends_them_and_none_begins_after(pulls, downloads):
    await begin(pulls, "a", "b", "c")
    assert await pulls.close(5.0)
    await turns()
    assert sorted(downloads.left) == ["a", "b"]
    assert states(pulls)[:2] == ["cancelled", "cancelled"]
    assert downloads.repos == ["a", "b"]
    with pytest.raises(ShuttingDown):
        pulls.start("d", "main", "d")


async def test_a_model_that_is_there_is_done_whatever_becomes_of_the_look_at_it(tmp_path, downloads):
    looks = []

    async def adopt():
        looks.append(1)
        raise RuntimeError

    pulls = Pulls(lambda: (tmp_path,), adopt, download=downloads)
    await begin(pulls, "a")
    downloads.say("a", Found(COMMIT, 0, 1, 0, 1), Done())
    await turns()
    assert (states(pulls), looks) == (["done"], [1])


def test_more_bytes_are_told_now_and_then_and_all_else_at_once():
    news, pull = PullNews(), {"id": 1, "state": "downloading", "bytes_done": 1, "error": None}
    assert not news.may_wait(pull, 0.0)
    news.tell(pull, 0.0)
    assert news.may_wait({**pull, "bytes_done": 2}, PROGRESS_INTERVAL / 2)
    assert not news.may_wait({**pull, "bytes_done": 2}, PROGRESS_INTERVAL)
    assert not news.may_wait({**pull, "state": "done"}, 0.0)
    assert news.forget(1) == {"id": 1, "removed": True}


def test_what_nobody_went_on_with_goes_after_days(tmp_path):
    removed_folder(tmp_path).mkdir(parents=True)
    (removed_folder(tmp_path) / "x").write_text("x")
    places = {}
    for name in ("old", "held", "new"):
        with begun(tmp_path, f"org/{name}", COMMIT) as files:
            (files / "config.json.part").write_text("x")
            places[name] = files.parent
    for name in ("old", "held"):
        os.utime(places[name] / "lock", (0, 0))
    now = (places["new"] / "lock").stat().st_mtime + KEPT - 1
    with begun(tmp_path, "org/held", COMMIT):
        os.utime(places["held"] / "lock", (0, 0))
        assert clean(tmp_path, now) == [places["old"]]
    assert sorted(path.name for path in (tmp_path / HIDDEN / "pulls").iterdir()) == [
        places["held"].name,
        places["new"].name,
    ]
    assert not removed_folder(tmp_path).exists()
    assert clean(tmp_path / "nowhere", now) == []


def test_a_folder_that_lacks_a_file_is_not_whole(tmp_path):
    target = tmp_path / "m"
    target.mkdir()
    (target / "config.json").write_text("{}")
    record = b'{"repo": "a/b", "commit": "%s", "files": {"config.json": 2}}' % COMMIT.encode()
    (target / ".mlxd-pull.json").write_bytes(record)
    assert record_of_whole(target, "a/b", COMMIT).files == {"config.json": 2}
    for repo, commit in (("a/c", COMMIT), ("a/b", "b" * 40)):
        with pytest.raises(DownloadFailed):
            record_of_whole(target, repo, commit)
    (target / "config.json").write_text("")
    with pytest.raises(DownloadFailed):
        record_of_whole(target, "a/b", COMMIT)
