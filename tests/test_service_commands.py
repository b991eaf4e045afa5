"""`mlxd service` where there is no service manager to talk to, and what it shows of a daemon that runs all the same."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from cli_process import mlxd

from mlxd.daemon.cli.doctor_service import service_checks
from mlxd.daemon.service.choice import manager_of
from mlxd.daemon.service.failures import ServiceFailed
from mlxd.daemon.service.state import LastExit, ServiceState
from mlxd.daemon.service.systemd import Systemd
from mlxd.daemon.service.tools import Ran, run_tool

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it is launchd that there may be none of")
NOWHERE = {"XDG_RUNTIME_DIR": "/nowhere", "DBUS_SESSION_BUS_ADDRESS": "", "XDG_CONFIG_HOME": ""}


@pytest.fixture
def file(tmp_path):
    return tmp_path / ".config" / "systemd" / "user" / "mlxd.service"


@pytest.fixture
def installed(file):
    file.parent.mkdir(parents=True)
    file.write_text("[Service]\nExecStart=/bin/true\n")
    return file


def service(home, *words, **extra):
    done = mlxd("service", *words, home=home, **(NOWHERE | extra))
    assert b"Traceback" not in done.stderr
    return done.returncode, (done.stdout + done.stderr).decode()


@pytest.mark.skipif(shutil.which("systemctl") is None, reason="there is no systemctl here")
def test_without_a_user_systemd_nothing_is_written_and_it_says_what_to_do(tmp_path, file):
    code, said = service(tmp_path, "install")
    assert code == 1
    assert "this user has no systemd to run services here (Failed to connect to bus" in said
    assert "loginctl enable-linger" in said
    assert "mlxd serve" in said
    assert not file.exists()


@pytest.mark.parametrize("verb", ["install", "start", "stop"])
def test_without_systemctl_it_says_so(verb, tmp_path, installed):
    code, said = service(tmp_path, verb, PATH=str(tmp_path))
    assert code == 1
    assert "this user has no systemd to run services here (there is no systemctl here)" in said
    assert installed.read_text() == "[Service]\nExecStart=/bin/true\n"


def test_what_cannot_be_stopped_can_be_removed(tmp_path, installed):
    code, said = service(tmp_path, "uninstall", PATH=str(tmp_path))
    assert (code, said) == (0, f"removed {installed}\n")
    assert not installed.exists()


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_what_is_not_installed_is_neither_started_nor_stopped(verb, tmp_path):
    code, said = service(tmp_path, verb)
    assert code == 1
    assert "run `mlxd service install` first" in said


def test_the_status_tells_what_can_be_known_without_the_manager(tmp_path, installed, daemon):
    daemon.answers["GET", "/health"] = (200, {"status": "ok", "version": "1.2", "pid": 77, "uptime_s": 61.0})
    code, said = service(tmp_path, "status", PATH=str(tmp_path), MLXD_URL=daemon.url)
    assert code == 1
    assert said.splitlines() == [
        "service  systemd: installed",
        f"file     {installed}",
        "running  unknown: there is no systemctl here",
        f"daemon   mlxd 1.2 on {daemon.url}, up 1m1s, process 77",
        "log      journalctl --user -u mlxd -f -o cat",
    ]
    code, said = service(tmp_path, "status", "--json", PATH=str(tmp_path), MLXD_URL=daemon.url)
    page = json.loads(said)
    assert (page["running"], page["trouble"]) == (None, "there is no systemctl here")
    assert page["health"]["pid"] == 77


def test_a_status_needs_no_valid_configuration(tmp_path):
    (tmp_path / "mlxd.toml").write_text("prot = 1")
    _, said = service(tmp_path, "status", MLXD_CONFIG=str(tmp_path / "mlxd.toml"))
    assert "daemon   unknown: " in said
    assert "mlxd.toml:1" in said
    _, said = service(tmp_path, "status", MLXD_SERVER__PORT="0")
    assert "daemon   unknown: server.port is 0" in said


def test_an_invalid_configuration_is_told_before_the_manager_is_looked_for(tmp_path, file):
    (tmp_path / "mlxd.toml").write_text("prot = 1")
    code, said = service(tmp_path, "install", "--config", str(tmp_path / "mlxd.toml"))
    assert (code, "mlxd.toml:1" in said) == (78, True)
    code, said = service(tmp_path, "install", MLXD_CONFIG=str(tmp_path / "mlxd.toml"))
    assert (code, "mlxd.toml:1" in said) == (78, True)
    assert not file.exists()


def test_a_variable_of_this_shell_is_no_part_of_the_service_and_of_no_consequence(tmp_path):
    code, said = service(tmp_path, "install", MLXD_SERVER__PORT="nonsense", PATH=str(tmp_path))
    assert (code, "there is no systemctl" in said) == (1, True)


@pytest.mark.parametrize("size", ["much", "-1", ""])
def test_a_memory_limit_that_is_no_size_is_bad_usage(size, tmp_path):
    code, said = service(tmp_path, "install", "--memory-max", size)
    assert (code, "--memory-max" in said) == (2, True)


def test_a_tool_that_does_not_end_is_given_up():
    with pytest.raises(ServiceFailed, match=r"`sleep 60` did not end within 0\.1 s"):
        run_tool(["sleep", "60"], 0.1)
    assert run_tool(["sh", "-c", "echo out; echo err >&2; exit 3"], 10) == Ran(3, "out\n", "err\n")


def test_an_unknown_system_has_no_manager(tmp_path):
    with pytest.raises(ServiceFailed, match="no service manager for sunos"):
        manager_of("sunos5", {"HOME": str(tmp_path)}, 0, run_tool)


@pytest.mark.parametrize(
    ("state", "level", "found"),
    [
        (ServiceState(True, running=True, pid=7), "ok", "installed, and running as process 7"),
        (ServiceState(True, running=False), "warning", "installed, but not running"),
        (
            ServiceState(True, running=False, last_exit=LastExit(code=76)),
            "warning",
            "installed, but not running; it last ended with code 76",
        ),
        (ServiceState(True, trouble="no bus"), "warning", "installed, but systemd cannot be asked about it: no bus"),
    ],
)
def test_the_doctor_tells_how_an_installed_service_is(state, level, found, installed):
    class Told(Systemd):
        def state(self):
            return state

    [check] = service_checks(Told(answers(), installed.parents[2], installed))
    assert (check.level, check.found) == (level, found)


def test_the_doctor_needs_no_service_and_no_manager(tmp_path, installed):
    for manager in (None, Systemd(answers(), tmp_path, tmp_path)):
        [check] = service_checks(manager)
        assert (check.level, check.details) == ("ok", {"installed": False})
    [check] = service_checks(Systemd(answers(), installed.parents[2], tmp_path))
    assert (check.level, "does not tell LoadState" in check.found) == ("warning", True)


def answers(**shown):
    """A systemctl that knows nothing but the properties of the unit."""
    text = "".join(f"{name}={value}\n" for name, value in shown.items())
    return lambda _command, _seconds: Ran(0, text, "")


@pytest.mark.parametrize(
    ("code", "status", "text"), [("1", "78", "code 78"), ("2", "9", "SIGKILL"), ("3", "6", "SIGABRT"), ("0", "0", None)]
)
def test_how_the_last_run_ended_is_read_from_systemd(code, status, text, tmp_path):
    run = answers(LoadState="loaded", UnitFileState="disabled", MainPID="0", ExecMainCode=code, ExecMainStatus=status)
    state = Systemd(run, tmp_path, tmp_path / "linger").state()
    assert (state.enabled, state.running, state.pid) == (False, False, None)
    assert (str(state.last_exit) if state.last_exit else None) == text


def test_a_systemctl_that_says_something_else_is_told(tmp_path):
    with pytest.raises(ServiceFailed, match="does not tell LoadState"):
        Systemd(answers(MainPID="0"), tmp_path, tmp_path).state()


def test_services_of_a_user_who_lingers_outlast_the_login(tmp_path):
    linger = tmp_path / "me"
    [note] = Systemd(answers(), tmp_path, linger).notes()
    assert "enable-linger" in note
    linger.touch()
    assert Systemd(answers(), tmp_path, linger).notes() == []
