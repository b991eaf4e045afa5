"""The service under launchd: what its tool is told, and what is made of what it shows."""

from __future__ import annotations

import plistlib

import pytest
from fake_launchd import FakeLaunchd

from mlxd.daemon.service.failures import NotInstalled, ServiceFailed, StartFailed
from mlxd.daemon.service.files import Change
from mlxd.daemon.service.launchd import Launchd
from mlxd.daemon.service.operations import START_SECONDS, install, start, stop, uninstall
from mlxd.daemon.service.plan import ServicePlan
from mlxd.daemon.service.state import LastExit, ServiceState
from mlxd.daemon.service.tools import Ran
from mlxd.daemon.units import Size

PLAN = ServicePlan(("/opt/mlxd",), 90)
JOB = "gui/501/org.mlxd.daemon"


class Mac:
    """A user's machine: `said` is what the commands reported, `waited` the seconds that they let pass."""

    def __init__(self, home):
        self.launchd = FakeLaunchd()
        self.said = []
        self.waited = 0.0
        self.answers = 4242
        self.on_pause = lambda: None
        self.manager = Launchd(self.launchd, home, 501, self.pause)

    def pause(self, seconds):
        self.waited += seconds
        self.on_pause()

    def install(self, plan=PLAN):
        return install(self.manager, plan, self.said.append)

    def start(self):
        return start(self.manager, lambda: self.answers, self.pause, self.said.append)

    def stop(self):
        stop(self.manager, self.said.append)

    def uninstall(self):
        uninstall(self.manager, self.said.append)


@pytest.fixture
def mac(tmp_path):
    return Mac(tmp_path)


def test_an_install_writes_the_agent_and_its_log_folder_and_a_start_loads_it(mac, tmp_path):
    assert mac.install() is Change.WRITTEN
    file = tmp_path / "Library" / "LaunchAgents" / "org.mlxd.daemon.plist"
    assert plistlib.loads(file.read_bytes())["WorkingDirectory"] == str(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "Library" / "Logs" / "mlxd").is_dir()
    assert mac.start() == ServiceState(True, True, True, 4242)
    assert mac.launchd.commands == [f"enable {JOB}", f"bootstrap gui/501 {file}", f"kickstart {JOB}"]
    assert mac.said == [f"wrote {file}", "started, as process 4242"]


def test_a_second_install_changes_nothing_and_a_second_start_says_so(mac):
    mac.install()
    mac.start()
    mac.said.clear()
    assert mac.install() is Change.SAME
    mac.start()
    assert mac.said == [f"unchanged {mac.manager.file}", "it runs already, as process 4242"]
    assert mac.launchd.commands[-1] == f"enable {JOB}"


def test_an_install_with_another_plan_tells_the_lines_that_changed(mac):
    mac.install()
    mac.said.clear()
    assert mac.install(ServicePlan(("/opt/mlxd",), 700)) is Change.REPLACED
    assert mac.said == [
        f"replaced {mac.manager.file}",
        "  -\t<integer>90</integer>",
        "  +\t<integer>700</integer>",
    ]


def test_a_start_takes_a_file_that_changed_since_the_last_run(mac):
    mac.install()
    mac.start()
    mac.launchd.end("last exit code = 0")
    mac.install(ServicePlan(("/opt/mlxd",), 700))
    mac.launchd.ends = None
    mac.start()
    assert mac.launchd.job["ExitTimeOut"] == 700


@pytest.mark.parametrize(
    ("lines", "ended"),
    [
        ("last exit code = 78: EX_CONFIG", LastExit(code=78)),
        ("last exit code = 75: EX_TEMPFAIL", LastExit(code=75)),
        ("last terminating signal = Abort trap: 6", LastExit(signal="SIGABRT")),
        ("last terminating signal = User defined signal 1: 10", LastExit(signal="SIGUSR1")),
        ("last terminating signal = Unknown: 250", LastExit(signal="signal 250")),
    ],
)
def test_a_daemon_that_ends_while_it_starts_is_told_with_how_it_ended(mac, lines, ended):
    mac.install()
    mac.launchd.ends = lines
    with pytest.raises(StartFailed, match="while it started") as failed:
        mac.start()
    assert failed.value.last_exit == ended
    assert mac.manager.state() == ServiceState(True, True, False, None, ended)


def test_a_start_waits_until_the_daemon_itself_answers(mac):
    mac.install()
    mac.answers = None

    def answer_late():
        mac.answers = 4242 if mac.waited > 3 else 99  # another daemon at the same address does not count

    mac.on_pause = answer_late
    mac.start()
    assert mac.said[-1] == "started, as process 4242"
    assert 3 < mac.waited < 4


def test_a_start_does_not_wait_for_ever(mac):
    mac.install()
    mac.answers = None
    mac.start()
    assert "does not answer yet" in mac.said[-1]
    assert mac.waited == pytest.approx(START_SECONDS)


def test_a_process_that_is_still_to_be_spawned_is_waited_for(mac):
    mac.install()
    mac.launchd.ends = "last exit code = (never exited)"

    def spawn():
        mac.launchd.pid = 4242

    mac.on_pause = spawn
    assert mac.start().pid == 4242


def test_a_stop_waits_for_the_end_of_a_job_that_takes_its_time(mac):
    mac.install()
    mac.start()
    mac.launchd.lingers = 5
    mac.stop()
    assert mac.launchd.loaded is None
    assert mac.waited > 0
    assert mac.said[-1] == "stopped"
    mac.stop()
    assert mac.said[-1] == "it did not run"


def test_an_uninstall_stops_and_removes_and_may_be_repeated(mac):
    mac.install()
    mac.start()
    mac.uninstall()
    assert mac.launchd.loaded is None
    assert not mac.manager.file.exists()
    assert mac.said[-2:] == ["stopped", f"removed {mac.manager.file}"]
    mac.uninstall()
    assert mac.said[-1].startswith("not installed")


def test_without_a_session_on_the_screen_nothing_is_written(mac):
    mac.launchd.has_session = False
    with pytest.raises(ServiceFailed, match=r"Domain does not support.*Log in on the screen"):
        mac.install()
    assert not mac.manager.file.exists()
    assert mac.manager.state() == ServiceState(False, trouble="Domain does not support specified action")


def test_what_is_not_installed_is_neither_started_nor_stopped(mac):
    for call in (mac.start, mac.stop):
        with pytest.raises(NotInstalled, match="mlxd service install"):
            call()
    assert mac.manager.state() == ServiceState(False, False, False)


def test_launchd_has_no_memory_limit(mac):
    with pytest.raises(ServiceFailed, match=r"memory\.ceiling"):
        mac.install(ServicePlan(("/opt/mlxd",), 90, memory_max=Size(bytes=1)))
    assert not mac.manager.file.exists()


def test_what_launchctl_refuses_is_told_in_its_words(mac):
    mac.install()
    mac.launchd.refused = {"bootstrap": Ran(5, "", "Bootstrap failed: 5: Input/output error\n")}
    with pytest.raises(ServiceFailed, match=r"launchctl bootstrap gui/501 .* failed: Bootstrap failed: 5"):
        mac.start()


def test_a_masked_file_is_left_alone(mac):
    mac.manager.file.parent.mkdir(parents=True)
    mac.manager.file.symlink_to("/dev/null")
    for call in (mac.install, mac.uninstall):
        with pytest.raises(ServiceFailed, match="masked"):
            call()
        assert mac.manager.file.is_symlink()


def test_a_link_to_a_file_elsewhere_is_followed(mac, tmp_path):
    kept = tmp_path / "dotfiles.plist"
    kept.write_bytes(b"old")
    mac.manager.file.parent.mkdir(parents=True)
    mac.manager.file.symlink_to(kept)
    assert mac.install() is Change.REPLACED
    assert mac.manager.file.is_symlink()
    assert plistlib.loads(kept.read_bytes())["Label"] == "org.mlxd.daemon"
    assert sorted(tmp_path.iterdir()) == [tmp_path / "Library", kept]
