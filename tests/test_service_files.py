"""The plain service files of etc/: they are what is rendered, their readers take them, and they wait for a stop."""

import configparser
import os
import plistlib
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from mlxd.daemon.cli.failures import Exit
from mlxd.daemon.cli.root import COMMANDS
from mlxd.daemon.settings import Settings
from mlxd.daemon.stop_time import exit_seconds

ROOT = Path(__file__).resolve().parent.parent
ETC = ROOT / "etc"
RENDERED = runpy.run_path(str(ETC / "service_files.py"))["FILES"]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
UNITS = ["mlxd.service", "system/mlxd.service"]
PLISTS = ["org.mlxd.daemon.plist", "system/org.mlxd.daemon.plist"]
LONGEST_STOP = exit_seconds(Settings())
NO_RETRY = {Exit.STATE_DIR_BUSY, Exit.ADDRESS_IN_USE, Exit.BAD_CONFIG}
every_unit = pytest.mark.parametrize("name", UNITS)
every_plist = pytest.mark.parametrize("name", PLISTS)
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")


def unit(name):
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str
    parser.read_string((ETC / name).read_text())
    return parser


def job(name):
    return plistlib.loads((ETC / name).read_bytes())


def complaints(file, folder, *, user):
    """What systemd says of a unit file, with its command in place; other units' troubles left out."""
    command = folder / ".local" / "bin" / "mlxd"
    command.parent.mkdir(parents=True)
    shutil.copy("/bin/true", command)
    copied = folder / file.name
    copied.write_text(file.read_text().replace("/usr/local/bin/mlxd", str(command)))
    environ = {**os.environ, "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    verify = ["systemd-analyze", "verify", "--user" if user else "--system", "--man=no", str(copied)]
    run = subprocess.run(verify, env=environ, capture_output=True, text=True, check=False)
    # before it looks at the unit it may fail for reasons of the machine
    if "Failed to initialize manager" in run.stderr:
        pytest.skip(run.stderr)
    return [line for line in run.stderr.splitlines() if file.name in line]


def test_every_plain_file_is_what_is_rendered():
    assert sorted(RENDERED) == sorted([*UNITS, *PLISTS])
    for name, content in RENDERED.items():
        assert (ETC / name).read_bytes() == content, f"{name} is old; run `make service-files`"


@needs_systemd
@every_unit
def test_systemd_understands_a_unit(name, tmp_path):
    assert complaints(ETC / name, tmp_path, user=name == UNITS[0]) == []


@needs_systemd
def test_systemd_would_complain_about_an_unknown_key(tmp_path):
    broken = tmp_path / "broken.service"
    broken.write_text((ETC / UNITS[0]).read_text().replace("TimeoutStopSec", "TimeoutStopSecs"))
    assert any("TimeoutStopSecs" in line for line in complaints(broken, tmp_path / "home", user=True))


def test_the_units_run_the_daemon():
    own, machines = (unit(name) for name in UNITS)
    assert own["Service"]["ExecStart"] == "%h/.local/bin/mlxd serve"
    assert machines["Service"]["ExecStart"] == "/usr/local/bin/mlxd serve --config /etc/mlxd/mlxd.toml"
    assert "serve" in COMMANDS
    assert own["Install"]["WantedBy"] == "default.target"
    assert machines["Install"]["WantedBy"] == "multi-user.target"


@every_unit
def test_a_unit_is_started_again_only_where_that_can_help(name):
    service = unit(name)["Service"]
    assert service["Restart"] == "on-failure"
    assert {int(code) for code in service["RestartPreventExitStatus"].split()} == NO_RETRY


@every_unit
def test_systemd_hears_of_the_daemon_and_waits_longer_than_a_stop_takes(name):
    service = unit(name)["Service"]
    assert (service["Type"], service["NotifyAccess"], service["KillMode"]) == ("notify", "main", "mixed")
    assert float(service["TimeoutStopSec"]) > LONGEST_STOP
    # a hang is first told by the daemon itself
    assert float(service["WatchdogSec"]) > 2 * Settings().supervision.loop_timeout


@every_unit
def test_a_unit_forbids_nothing_that_mlx_needs(name):
    service = unit(name)["Service"]
    assert service["NoNewPrivileges"] == "yes"
    assert {"AF_UNIX", "AF_INET", "AF_INET6"} <= set(service["RestrictAddressFamilies"].split())
    # kernels are compiled at run time, the GPU is a device, models lie anywhere in the home folder
    for key in ("MemoryDenyWriteExecute", "PrivateDevices", "DevicePolicy", "ProtectHome", "MemoryMax"):
        assert key not in service


def test_the_machines_unit_has_a_user_and_a_folder_of_its_own():
    service = unit("system/mlxd.service")["Service"]
    assert (service["User"], service["Group"], service["StateDirectory"]) == ("mlxd", "mlxd", "mlxd")
    assert service["WorkingDirectory"] == "%S/mlxd"
    assert service["Environment"] == "HOME=%S/mlxd"
    assert service["CapabilityBoundingSet"] == ""


@every_plist
def test_launchd_runs_the_daemon_and_starts_it_again_only_after_a_crash(name):
    keys = job(name)
    assert keys["Label"] == Path(name).stem
    assert keys["ProgramArguments"][1] == "serve"
    assert keys["RunAtLoad"] is True
    assert keys["KeepAlive"] == {"Crashed": True}
    assert keys["ThrottleInterval"] >= 10
    assert keys["ProcessType"] == "Interactive"
    assert keys["Umask"] == 0o077
    assert keys["SoftResourceLimits"]["NumberOfFiles"] <= keys["HardResourceLimits"]["NumberOfFiles"]


@every_plist
def test_launchd_waits_longer_than_a_stop_takes(name):
    assert job(name)["ExitTimeOut"] > LONGEST_STOP


@every_plist
def test_the_log_of_a_job_is_rotated_by_the_daemon_and_last_words_have_a_file_of_their_own(name):
    keys = job(name)
    environ = keys["EnvironmentVariables"]
    assert environ["MLXD_LOG__STDERR"] == "false"
    assert keys["StandardOutPath"] == keys["StandardErrorPath"] != environ["MLXD_LOG__FILE"]
    assert Path(keys["StandardErrorPath"]).parent == Path(environ["MLXD_LOG__FILE"]).parent


def test_the_machines_job_has_a_user():
    keys = job("system/org.mlxd.daemon.plist")
    assert keys["UserName"] == "USER_NAME"
    assert keys["ProgramArguments"] == ["/usr/local/bin/mlxd", "serve", "--config", "/etc/mlxd/mlxd.toml"]


def test_the_document_has_the_times_of_the_files():
    assert f"has {unit(UNITS[0])['Service']['TimeoutStopSec']} seconds" in OPERATIONS
    assert f"for {unit(UNITS[0])['Service']['WatchdogSec']} seconds" in OPERATIONS
    assert f"{job(PLISTS[0])['ThrottleInterval']} seconds after" in OPERATIONS


def test_the_documented_commands_complete_the_plists(tmp_path):
    own, machines = [line for line in OPERATIONS.splitlines() if line.lstrip().startswith("sed ")]
    (tmp_path / "Library" / "LaunchAgents").mkdir(parents=True)
    environ = {**os.environ, "HOME": str(tmp_path), "USER": "me"}
    subprocess.run(["/bin/sh", "-ec", own], cwd=ROOT, env=environ, check=True)
    made = (tmp_path / "Library" / "LaunchAgents" / "org.mlxd.daemon.plist").read_bytes()
    keys = plistlib.loads(made)
    paths = [keys["ProgramArguments"][0], keys["WorkingDirectory"], keys["EnvironmentVariables"]["MLXD_LOG__FILE"]]
    assert all(path.startswith(str(tmp_path)) for path in paths)
    assert b"HOME_FOLDER" not in made
    filled, _, _ = machines.partition(" |")
    made = subprocess.run(["/bin/sh", "-ec", filled], cwd=ROOT, env=environ, check=True, capture_output=True).stdout
    assert plistlib.loads(made)["UserName"] == "me"
