"""The service files of etc/: the tools that read them understand them, and they wait longer than a stop takes."""

import configparser
import os
import plistlib
import shutil
import subprocess
from pathlib import Path

import pytest

from mlxd.daemon.cli.failures import Exit
from mlxd.daemon.cli.root import COMMANDS
from mlxd.daemon.serve import FLUSH_TIMEOUT
from mlxd.daemon.settings import ResidencySettings, ServerSettings

ROOT = Path(__file__).resolve().parent.parent
UNIT = ROOT / "etc" / "mlxd.service"
AGENT = ROOT / "etc" / "org.mlxd.daemon.plist"
LONGEST_STOP = ServerSettings().drain_timeout + ResidencySettings().unload_timeout + FLUSH_TIMEOUT
NO_RETRY = {Exit.STATE_DIR_BUSY, Exit.ADDRESS_IN_USE, Exit.BAD_CONFIG}


@pytest.fixture
def unit():
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str
    parser.read_string(UNIT.read_text())
    return parser


@pytest.fixture
def agent():
    return plistlib.loads(AGENT.read_bytes().replace(b"HOME_FOLDER", b"/Users/me"))


def complaints(unit, tmp_path):
    """What systemd says of a unit file, with the command in the home folder; other units' troubles left out."""
    command = tmp_path / ".local" / "bin" / "mlxd"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    verify = ["systemd-analyze", "verify", "--user", "--man=no", str(unit)]
    run = subprocess.run(verify, env=environ, capture_output=True, text=True, check=False)
    # before it looks at the unit it may fail for reasons of the machine
    if "Failed to initialize manager" in run.stderr:
        pytest.skip(run.stderr)
    return [line for line in run.stderr.splitlines() if unit.name in line]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_understands_the_unit(tmp_path):
    assert complaints(UNIT, tmp_path) == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_would_complain_about_an_unknown_key(tmp_path):
    broken = tmp_path / "mlxd.service"
    broken.write_text(UNIT.read_text().replace("TimeoutStopSec", "TimeoutStopSecs"))
    assert any("TimeoutStopSecs" in line for line in complaints(broken, tmp_path))


def test_the_unit_runs_the_daemon_in_the_foreground(unit):
    service = unit["Service"]
    command, *arguments = service["ExecStart"].split()
    assert command == "%h/.local/bin/mlxd"
    assert arguments == ["serve"]
    assert arguments[0] in COMMANDS
    assert service["Type"] == "exec"
    assert service["KillMode"] == "mixed"
    assert unit["Install"]["WantedBy"] == "default.target"


def test_the_unit_is_started_again_only_where_that_can_help(unit):
    service = unit["Service"]
    assert service["Restart"] == "on-failure"
    assert {int(code) for code in service["RestartPreventExitStatus"].split()} == NO_RETRY


def test_systemd_waits_longer_than_a_stop_takes(unit):
    assert float(unit["Service"]["TimeoutStopSec"]) > LONGEST_STOP


def test_the_unit_forbids_nothing_that_mlx_needs(unit):
    service = unit["Service"]
    assert service["NoNewPrivileges"] == "yes"
    assert {"AF_UNIX", "AF_INET", "AF_INET6"} <= set(service["RestrictAddressFamilies"].split())
    # kernels are compiled at run time, the GPU is a device, models lie anywhere in the home folder
    for key in ("MemoryDenyWriteExecute", "PrivateDevices", "DevicePolicy", "ProtectHome", "MemoryMax"):
        assert key not in service


def test_the_agent_runs_the_daemon_and_keeps_it(agent):
    assert agent["Label"] == AGENT.stem == "org.mlxd.daemon"
    assert agent["ProgramArguments"] == ["/Users/me/.local/bin/mlxd", "serve"]
    assert agent["RunAtLoad"] is True
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert agent["ProcessType"] == "Interactive"
    assert agent["ThrottleInterval"] >= 10
    assert agent["Umask"] == 0o077


def test_launchd_waits_longer_than_a_stop_takes(agent):
    assert agent["ExitTimeOut"] > LONGEST_STOP


def test_the_agent_logs_into_the_home_folder(agent):
    assert {agent["StandardOutPath"], agent["StandardErrorPath"]} == {"/Users/me/Library/Logs/mlxd.log"}


def test_the_document_has_the_times_of_the_files(unit, agent):
    text = (ROOT / "docs" / "operations.md").read_text()
    assert f"has {unit['Service']['TimeoutStopSec']} seconds" in text
    assert f"every {agent['ThrottleInterval']} seconds" in text


def test_the_documented_command_completes_the_agent(tmp_path):
    commands = (ROOT / "docs" / "operations.md").read_text().splitlines()
    [command] = [line for line in commands if line.startswith("sed ")]
    (tmp_path / "Library" / "LaunchAgents").mkdir(parents=True)
    subprocess.run(["/bin/sh", "-c", command], cwd=ROOT, env={**os.environ, "HOME": str(tmp_path)}, check=True)
    made = (tmp_path / "Library" / "LaunchAgents" / AGENT.name).read_bytes()
    agent = plistlib.loads(made)
    paths = [agent["ProgramArguments"][0], agent["StandardOutPath"], agent["StandardErrorPath"]]
    assert all(path.startswith(f"{tmp_path}/") for path in paths)
    assert b"HOME_FOLDER/" not in made
