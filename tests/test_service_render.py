"""What the service files say for a plan: command, environment, limits, times; and what they cannot hold."""

from __future__ import annotations

import plistlib
import sys
from pathlib import Path

import pytest

from mlxd.daemon.service.failures import ServiceFailed
from mlxd.daemon.service.launchd_plist import agent, launch_daemon
from mlxd.daemon.service.plan import ServicePlan, kept_variables, lost_variables, own_program, wait_for_stop
from mlxd.daemon.service.systemd_unit import system_unit, user_unit
from mlxd.daemon.settings import ServerSettings, Settings
from mlxd.daemon.stop_time import exit_seconds
from mlxd.daemon.units import Size

PLAN = ServicePlan(("/opt/mlxd/bin/mlxd",), 90)
HOME = Path("/Users/me")


def changed(**values):
    return ServicePlan(**{"program": PLAN.program, "stop_seconds": PLAN.stop_seconds} | values)


def line(text, key):
    [found] = [line for line in text.splitlines() if line.startswith(f"{key}=")]
    return found.partition("=")[2]


def test_the_command_names_the_configuration_only_where_one_is_named():
    assert line(user_unit(PLAN), "ExecStart") == "/opt/mlxd/bin/mlxd serve"
    named = changed(config=Path("/etc/my mlxd.toml"))
    assert line(user_unit(named), "ExecStart") == '/opt/mlxd/bin/mlxd serve --config "/etc/my mlxd.toml"'
    arguments = plistlib.loads(agent(named, HOME))["ProgramArguments"]
    assert arguments == ["/opt/mlxd/bin/mlxd", "serve", "--config", "/etc/my mlxd.toml"]


def test_what_systemd_would_expand_or_take_apart_stays_as_it_is():
    odd = changed(program=("/o p/$x/100%/mlxd",), config=Path('/c/$HOME/50%/"a\\b'), environ={"HF_HOME": "/a b;c"})
    text = user_unit(odd)
    assert line(text, "ExecStart") == '"/o p/$x/100%%/mlxd" serve --config "/c/$$HOME/50%%/\\"a\\\\b"'
    assert line(text, "Environment") == '"HF_HOME=/a b;c"'


@pytest.mark.parametrize("path", ["/a\nExecStart=/bin/evil", "/a\x00b", "/a\tb"])
def test_a_path_that_a_unit_cannot_hold_is_refused(path):
    with pytest.raises(ServiceFailed, match="cannot hold"):
        user_unit(changed(config=Path(path)))


def test_a_path_that_a_property_list_cannot_hold_is_refused():
    with pytest.raises(ServiceFailed, match="cannot hold"):
        agent(changed(config=Path("/a\x00b")), HOME)


def test_a_program_without_its_folder_is_refused():
    with pytest.raises(ServiceFailed, match="absolute"):
        user_unit(changed(program=("mlxd",)))


@pytest.mark.parametrize(("size", "written"), [(Size(bytes=3 << 30), "3221225472"), (Size(fraction=0.75), "75%")])
def test_a_memory_limit_is_written_in_systemds_own_form(size, written):
    assert line(user_unit(changed(memory_max=size)), "MemoryMax") == written
    assert "MemoryMax" not in user_unit(PLAN)


def test_the_time_for_a_stop_follows_the_configuration():
    settings = Settings(server=ServerSettings(drain_timeout=600.5))
    plan = changed(stop_seconds=wait_for_stop(settings))
    assert plan.stop_seconds > exit_seconds(settings)
    assert line(user_unit(plan), "TimeoutStopSec") == str(plan.stop_seconds)
    assert plistlib.loads(agent(plan, HOME))["ExitTimeOut"] == plan.stop_seconds


def test_the_agent_logs_where_the_configuration_says_if_it_does():
    own = plistlib.loads(agent(PLAN, HOME))["EnvironmentVariables"]
    assert own == {"MLXD_LOG__FILE": "/Users/me/Library/Logs/mlxd/mlxd.log", "MLXD_LOG__STDERR": "false"}
    configured = plistlib.loads(agent(changed(has_log_file=True), HOME))["EnvironmentVariables"]
    assert configured == {"MLXD_LOG__STDERR": "false"}


def test_both_managers_hand_over_the_same_environment():
    plan = changed(environ={"HF_HOME": "/hf", "XDG_CACHE_HOME": "/cache"})
    text = user_unit(plan)
    assert "\nEnvironment=HF_HOME=/hf\nEnvironment=XDG_CACHE_HOME=/cache\n" in text
    assert plan.environ.items() <= plistlib.loads(agent(plan, HOME))["EnvironmentVariables"].items()


def test_the_machines_files_run_as_a_user():
    assert line(system_unit(PLAN, "mlxd"), "User") == "mlxd"
    job = plistlib.loads(launch_daemon(PLAN, "me", Path("/Library/Logs/mlxd")))
    assert job["UserName"] == "me"
    assert "WorkingDirectory" not in job


def test_a_service_takes_over_what_says_where_models_are_and_nothing_else():
    shell = {"HF_HOME": "/hf", "HF_HUB_CACHE": "", "PATH": "/bin", "MLXD_SERVER__PORT": "1", "MLXD_URL": "http://x"}
    assert kept_variables(shell) == {"HF_HOME": "/hf"}
    assert lost_variables(shell) == ["MLXD_SERVER__PORT"]


def test_the_program_is_the_one_of_this_installation():
    [program] = own_program()
    assert Path(program) == Path(sys.executable).with_name("mlxd")
