"""`mlxd doctor` finds nothing wrong where nothing is, and names each thing that is, with what to do."""

from __future__ import annotations

import json
import os
import shutil
import threading
from functools import partial

import pytest
from cli_process import mlxd

from mlxd.daemon.cli.doctor_checks import Group
from mlxd.daemon.cli.doctor_rounds import Rounds
from mlxd.daemon.state_dir import StateDir

MIB = 1 << 20


@pytest.fixture
def file(tmp_path):
    return tmp_path / "mlxd.toml"


@pytest.fixture
def folder(models_dir, tiny_model):
    return models_dir({"alpha": tiny_model})


@pytest.fixture
def good(file, tmp_path, folder):
    """A sound set-up on a port that nobody has."""
    file.write_text(
        f'[server]\nport = 0\nstate_dir = "{tmp_path / "state"}"\n[models]\ndirs = ["{folder}"]\ndefault = "alpha"\n'
    )
    return file


class Visit:
    """What the doctor said."""

    def __init__(self, done):
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        self.code = done.returncode
        self.checks = json.loads(done.stdout)["data"]

    def one(self, group, name):
        [found] = [check for check in self.checks if (check["group"], check["name"]) == (group, name)]
        return found

    def bad(self):
        return {(check["group"], check["name"], check["level"]) for check in self.checks if check["level"] != "ok"}


@pytest.fixture
def doctor(tmp_path):
    def doctor(*args, **extra):
        return Visit(mlxd("doctor", "--json", *args, home=tmp_path, **extra))

    return doctor


def faults(visit):
    """What is wrong, but for what this machine may have: other programs that take its memory, and a slow BLAS."""
    return {fault for fault in visit.bad() if fault[0] != "machine"} - {("mlx", "blas", "warning")}


def test_a_sound_set_up_has_no_problem(doctor, good, tmp_path):
    visit = doctor("--config", str(good))
    assert (visit.code, faults(visit)) == (0, set())
    groups = [check["group"] for check in visit.checks]
    assert list(dict.fromkeys(groups)) == [
        "machine",
        "mlx",
        "memory",
        "config",
        "address",
        "state",
        "service",
        "models",
    ]
    assert visit.one("models", "found")["details"] == {"models": ["alpha"]}
    assert visit.one("config", "file")["found"] == f"read from {good}"
    assert not (tmp_path / "state").exists()


def test_what_is_found_is_told_in_words_with_advice_below(good, tmp_path):
    good.write_text(good.read_text().replace('"alpha"', '"nobody"'))
    done = mlxd("doctor", "--config", str(good), home=tmp_path)
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 1
    assert lines[0].split() == ["WHERE", "WHAT", "HOW", "FOUND"]
    assert lines[1].split()[:3] == ["machine", "system", "ok"]
    assert all(len(line) <= 80 for line in lines)
    assert any(line.strip().startswith("→ correct line") for line in lines)
    assert lines[-1].startswith("1 problem")


def test_without_any_configuration_the_defaults_are_checked(doctor):
    visit = doctor(MLXD_SERVER__PORT="0")
    assert visit.code == 0
    assert visit.one("config", "values")["found"] == "valid, 1 from the environment"
    assert visit.one("models", "found")["level"] == "warning"


def test_every_problem_of_a_broken_configuration_is_named_and_the_rest_goes_on(doctor, file):
    file.write_text('[server]\nprot = 1\n[memory]\nceiling = "much"\n')
    visit = doctor("--config", str(file))
    problems = [check for check in visit.checks if check["level"] == "problem"]
    assert visit.code == 1
    assert [problem["details"] for problem in problems] == [
        {"file": str(file), "line": 2, "key": "server.prot"},
        {"file": str(file), "line": 4, "key": "memory.ceiling"},
    ]
    assert problems[0]["found"] == f"{file}:2: server.prot: unknown key; did you mean port?"
    assert problems[0]["advice"] == f"correct line 2 of {file}"
    assert visit.one("config", "rest")["level"] == "warning"
    assert {check["group"] for check in visit.checks} == {"machine", "mlx", "memory", "config", "service"}
    assert visit.one("mlx", "mlx")["level"] == "ok"
    assert visit.one("memory", "bounds")["level"] == "ok"


def test_what_this_version_cannot_follow_is_a_problem_and_nothing_else_is_left_out(doctor, good):
    visit = doctor("--config", str(good), MLXD_ENGINE__PREFIX_CACHE="off", MLXD_ENGINE__PREFIX_CACHE_DISK="1GB")
    assert faults(visit) == {("config", "values", "problem")}
    assert visit.one("config", "values")["advice"] == "correct environment MLXD_ENGINE__PREFIX_CACHE_DISK"
    assert visit.one("models", "found")["level"] == "ok"


def test_a_ceiling_below_the_idle_daemon_is_a_problem_with_its_numbers(doctor, good):
    good.write_text(good.read_text() + '[memory]\nceiling = "1MB"\n')
    visit = doctor("--config", str(good))
    limits = visit.one("memory", "limits")
    assert (visit.code, limits["level"]) == (1, "problem")
    assert limits["found"].startswith(f"{good}:8: memory.ceiling: 976.6 KiB (memory.ceiling) are not above")
    assert limits["advice"].startswith("raise memory.ceiling")
    assert limits["details"]["limit_bytes"] == 1_000_000


def test_a_model_that_can_never_fit_is_named_with_numbers_and_the_limit(doctor, good, tmp_path):
    probe = tmp_path / "probe.json"
    probe.write_text(json.dumps({"bytes": 100 * MIB, "mlx_active": 0, "mlx_cache": 0}))
    good.write_text(good.read_text() + f"[memory]\nceiling = {105 * MIB}\nsoft = {101 * MIB}\n")
    visit = doctor("--config", str(good), MLXD_TEST_PROBE=str(probe))
    size = visit.one("models", "size")
    assert (visit.code, size["level"]) == (1, "problem")
    assert (size["details"]["limit_bytes"], size["details"]["limit"]) == (MIB, "memory.soft")
    assert size["details"]["needed_bytes"] > 11_000_000
    assert "1.0 MiB are left for models (memory.soft)" in size["found"]
    assert "raise memory.soft" in size["advice"]


def test_a_ceiling_above_what_the_machine_can_give_is_a_warning(doctor, good):
    good.write_text(good.read_text() + '[memory]\nceiling = "100%"\n')
    visit = doctor("--config", str(good))
    bounds = visit.one("memory", "bounds")
    assert (visit.code, bounds["level"]) == (0, "warning")
    binding = [bound["name"] for bound in bounds["details"]["bounds"] if bound["binds"]]
    assert binding == ["memory.ceiling"]


def test_a_port_that_another_program_has_is_a_problem(doctor, good, daemon):
    port = daemon.url.rpartition(":")[2]
    visit = doctor("--config", str(good), MLXD_SERVER__PORT=port)
    taken = visit.one("address", "port")
    assert (visit.code, taken["level"]) == (1, "problem")
    assert f"127.0.0.1 port {port} is in use by a program" in taken["found"]
    assert daemon.asked("GET") == [("/health", None)]


def test_a_daemon_that_runs_is_found_and_asked_for_its_memory(doctor, good, daemon):
    serve_as_mlxd(daemon, footprint_bytes=200 * MIB, pressure="soft")
    visit = doctor("--config", str(good), MLXD_SERVER__PORT=daemon.url.rpartition(":")[2], MLXD_API_KEY="s3cret")
    assert visit.one("address", "port")["level"] == "ok"
    assert visit.one("address", "port")["details"]["pid"] == 4242
    memory = visit.one("memory", "daemon")
    assert (memory["level"], memory["details"]["pressure"]) == ("warning", "soft")
    assert visit.one("memory", "for models")["details"]["base_bytes"] == 150 * MIB
    assert {key for *_, key in daemon.requests} == {"Bearer s3cret"}
    assert {method for method, *_ in daemon.requests} == {"GET"}


def test_a_daemon_with_other_limits_than_are_configured_wants_a_reload(doctor, good, daemon):
    serve_as_mlxd(daemon, footprint_bytes=200 * MIB, pressure="ok")
    port = daemon.url.rpartition(":")[2]
    visit = doctor("--config", str(good), MLXD_SERVER__PORT=port, MLXD_MEMORY__CEILING="900MiB")
    memory = visit.one("memory", "daemon")
    assert (memory["level"], memory["advice"]) == ("warning", "`mlxd reload` applies what was changed")
    visit = doctor("--config", str(good), MLXD_SERVER__PORT=port, MLXD_MEMORY__CEILING="1GiB")
    assert visit.one("memory", "daemon")["level"] == "ok"


def serve_as_mlxd(daemon, **memory):
    health = {"status": "ok", "version": "9.9.9", "pid": 4242, "uptime_s": 1.0}
    limits = {"ceiling_bytes": 1 << 30, "soft_bytes": 900 * MIB, "limit": "memory.ceiling"}
    daemon.answers[("GET", "/health")] = (200, health)
    daemon.answers[("GET", "/admin/memory")] = (200, limits | memory | {"parts": {"base": 150 * MIB}})


def test_a_host_that_others_reach_is_refused_as_serve_would(doctor, good):
    visit = doctor("--config", str(good), MLXD_SERVER__HOST="0.0.0.0")
    assert faults(visit) == {("address", "host", "problem")}
    assert "other machines can reach" in visit.one("address", "host")["found"]


def test_a_host_that_is_not_of_this_machine_is_a_problem(doctor, good):
    # an address for documentation: no machine has it
    visit = doctor("--config", str(good), MLXD_SERVER__HOST="192.0.2.1")
    assert "192.0.2.1 port 0 cannot be listened on" in visit.one("address", "port")["found"]


def test_a_state_directory_that_cannot_be_written_is_a_problem(doctor, good, tmp_path):
    (tmp_path / "file").touch()
    visit = doctor("--config", str(good), MLXD_SERVER__STATE_DIR=str(tmp_path / "file" / "state"))
    assert faults(visit) == {("state", "directory", "problem")}
    assert f"{tmp_path / 'file'} is no folder" in visit.one("state", "directory")["found"]


def test_a_daemon_that_works_in_the_state_directory_unseen_is_a_warning(doctor, good, tmp_path):
    with StateDir(tmp_path / "state"):
        visit = doctor("--config", str(good))
    lock = visit.one("state", "lock")
    assert (lock["level"], lock["details"]["pid"]) == ("warning", os.getpid())
    assert visit.code == 0
    assert doctor("--config", str(good)).one("state", "lock")["level"] == "ok"


def test_a_model_with_truncated_weights_is_a_problem(doctor, good, folder):
    os.truncate(folder / "alpha" / "model.safetensors", 1_000_000)
    visit = doctor("--config", str(good))
    assert faults(visit) == {("models", "files", "problem")}
    files = visit.one("models", "files")
    assert files["found"].startswith("alpha cannot be loaded: model.safetensors is truncated")
    assert str(folder / "alpha") in files["advice"]


def test_an_architecture_that_is_not_installed_is_a_problem(doctor, good, folder):
    config = folder / "alpha" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "nonesuch"}))
    visit = doctor("--config", str(good))
    assert faults(visit) == {("models", "files", "problem")}
    assert "no model of type 'nonesuch'" in visit.one("models", "files")["found"]


def test_names_that_mean_no_model_are_problems_where_they_are_written(doctor, good):
    good.write_text(good.read_text() + 'preload = ["alpha", "beta"]\n[[model]]\nname = "gamma"\n')
    visit = doctor("--config", str(good))
    found = [check["found"] for check in visit.checks if (check["group"], check["name"]) == ("models", "names")]
    assert len(found) == 2
    assert found[0].startswith(f"{good}:8: model.gamma: no model of this name was found")
    assert found[1] == f"{good}:7: models.preload: there is no model 'beta'"


def test_names_that_clash_and_folders_that_are_not_there_are_warnings(doctor, good, folder, tmp_path):
    shutil.copytree(folder / "alpha", tmp_path / "more" / "alpha")
    dirs = f'dirs = ["{folder}", "{tmp_path / "more"}", "{tmp_path / "none"}"]'
    good.write_text(good.read_text().replace(f'dirs = ["{folder}"]', dirs))
    visit = doctor("--config", str(good))
    notes = [check["found"] for check in visit.checks if (check["group"], check["name"]) == ("models", "folders")]
    assert visit.code == 0
    assert sorted(notes) == [
        f"{tmp_path / 'none'} cannot be read: No such file or directory",
        f"alpha means {folder / 'alpha'}; the model in {tmp_path / 'more' / 'alpha'} is listed as more/alpha",
    ]


def test_pinned_models_that_do_not_fit_beside_each_other_are_a_warning(doctor, good, folder, tmp_path):
    shutil.copytree(folder / "alpha", folder / "beta")
    probe = tmp_path / "probe.json"
    probe.write_text(json.dumps({"bytes": 100 * MIB, "mlx_active": 0, "mlx_cache": 0}))
    pins = "".join(f'[[model]]\nname = "{name}"\npinned = true\n' for name in ("alpha", "beta"))
    good.write_text(good.read_text() + f'[memory]\nceiling = {120 * MIB}\nsoft = "100%"\n{pins}')
    visit = doctor("--config", str(good), MLXD_TEST_PROBE=str(probe))
    assert visit.one("models", "pinned")["level"] == "warning"
    assert visit.one("models", "pinned")["details"]["models"] == ["alpha", "beta"]
    assert visit.code == 0


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise ImportError('libmlx.so: cannot open shared object file')", "ImportError: libmlx.so: cannot open"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV ended it"),
    ],
)
def test_an_mlx_that_cannot_be_imported_is_a_problem_and_takes_nothing_with_it(doctor, good, tmp_path, source, says):
    package = tmp_path / "broken" / "mlx"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "core.py").write_text(source)
    path = os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH")]))
    visit = doctor("--config", str(good), PYTHONPATH=path)
    assert faults(visit) == {("mlx", "mlx", "problem")}
    assert says in visit.one("mlx", "mlx")["found"]
    assert "pip install" in visit.one("mlx", "mlx")["advice"]
    assert visit.one("memory", "for models")["level"] == "ok"


def test_a_library_that_is_named_but_not_there_is_a_problem(doctor, good):
    visit = doctor("--config", str(good), MLXD_ENGINE__BLAS="/no/such.so")
    assert faults(visit) == {("mlx", "blas", "problem")}


def test_a_daemon_that_refuses_the_key_hides_only_its_memory(doctor, good, daemon):
    serve_as_mlxd(daemon)
    refusal = {"error": {"message": "no such key", "type": "x", "code": "invalid_api_key"}}
    daemon.answers[("GET", "/admin/memory")] = (401, refusal)
    visit = doctor("--config", str(good), MLXD_SERVER__PORT=daemon.url.rpartition(":")[2])
    assert visit.one("address", "port")["level"] == "ok"
    assert "no such key" in visit.one("memory", "daemon")["found"]
    assert visit.one("memory", "daemon")["level"] == "warning"


def test_a_group_that_hangs_is_a_problem_and_the_others_go_on():
    rounds, group, end = Rounds(seconds=0.05), Group("models"), threading.Event()
    rounds.add(group, partial(end.wait))
    rounds.add(group, lambda: [group.ok("found", "one")])
    end.set()
    assert [(check.name, check.level) for check in rounds.checks] == [("time", "problem"), ("found", "ok")]
