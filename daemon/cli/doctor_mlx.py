"""The libraries as `mlxd doctor` sees them: tried in a process of its own, which a broken one may end."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from mlxd.daemon.blas import BlasFinder, BlasPlan, SystemBlas, plan_blas
from mlxd.daemon.checkup_mlx import LibraryReport
from mlxd.daemon.cli.doctor_checks import Check, Group
from mlxd.daemon.config_errors import ConfigError
from mlxd.daemon.settings import Settings

GROUP = Group("mlx")
TRIAL_SECONDS = 60.0
"""What importing the libraries may take; on a slow disk the first time does."""

# -P: a folder named mlx in the current one is not what the daemon would import
_TRIAL = (sys.executable, "-P", "-m", "mlxd.daemon.checkup_mlx")
_ON_LINUX = "install a backend for it: `pip install 'mlxd[cpu]'`, or 'mlxd[cuda]' for an NVIDIA GPU"
_ON_MACOS = "install it again for this Python: `pip install --force-reinstall mlx mlx-lm`"
_MLX_LM = "install it again beside this MLX: `pip install --upgrade mlx-lm`"


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of importing the libraries: the last report, None without any, and what ended it early if it did."""

    report: LibraryReport | None
    failure: str | None


def try_libraries(
    environ: Mapping[str, str], seconds: float = TRIAL_SECONDS, command: tuple[str, ...] = _TRIAL
) -> Trial:
    """Import all that the daemon does, in a child with this environment; it is killed after so many seconds."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=dict(environ), timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        return Trial(_last_report(error.stdout or b""), f"it did not end within {seconds:g} s")
    except OSError as error:
        return Trial(None, f"{sys.executable} cannot be started: {error.strerror}")
    return Trial(_last_report(done.stdout), _failure(done.returncode, done.stderr))


def blas_plan(settings: Settings, finder: BlasFinder | None = None) -> BlasPlan | ConfigError:
    """What a start would do about a BLAS, or why it would refuse."""
    try:
        return plan_blas(settings, os.environ, sys.platform, finder or SystemBlas())
    except ConfigError as error:
        return error


def trial_environ(plan: BlasPlan | ConfigError) -> Mapping[str, str]:
    """The environment that the daemon would run in."""
    environ = dict(os.environ)
    if isinstance(plan, BlasPlan):
        plan.announce(environ)
    return environ


def mlx_checks(trial: Trial, plan: BlasPlan | ConfigError) -> list[Check]:
    """All about Python and the libraries; `plan` is a refusal where engine.blas names no library."""
    python = GROUP.ok("python", f"{platform.python_implementation()} {platform.python_version()}")
    return [python, *_libraries(trial), _blas(plan)]


def _libraries(trial: Trial) -> list[Check]:
    """One check for each library that was got to."""
    report, failure = trial.report, trial.failure or "it ended early"
    if report is None:
        return [GROUP.problem("mlxd", f"its own modules cannot be imported: {failure}", "install mlxd again")]
    if report.mlx is None:
        return [GROUP.problem("mlx", f"it cannot be imported: {failure}", _reinstall())]
    if not report.computes:
        why = failure if report.computes is None else "a small product came out wrong"
        return [GROUP.problem("mlx", f"{report.mlx} cannot compute on the {report.device}: {why}", _reinstall())]
    mlx = _device(report.mlx, report.device or "")
    if report.mlx_lm is None:
        return [mlx, GROUP.problem("mlx-lm", f"it cannot be imported: {failure}", _MLX_LM)]
    return [mlx, GROUP.ok("mlx-lm", report.mlx_lm, version=report.mlx_lm)]


def _device(version: str, device: str) -> Check:
    found, details = f"{version}, computes on the {device.upper()}", {"version": version, "device": device}
    if device == "cpu" and (sys.platform == "darwin" or SystemBlas().has_gpu_backend()):
        advice = "the GPU is not usable here, as in a virtual machine or without its driver; see to it"
        return GROUP.warning("mlx", found, advice, **details)
    return GROUP.ok("mlx", found, **details)


def _blas(plan: BlasPlan | ConfigError) -> Check:
    if isinstance(plan, ConfigError):
        return GROUP.problem("blas", str(plan), 'name an OpenBLAS for this machine, or set engine.blas to "auto"')
    if not plan.slow:
        return GROUP.ok("blas", plan.note)
    found = f"MLX will compute with its slow reference BLAS: {plan.note}"
    return GROUP.warning("blas", found, "give it an OpenBLAS: matrix products are tens of times faster then")


def _reinstall() -> str:
    return _ON_MACOS if sys.platform == "darwin" else _ON_LINUX


def _last_report(output: bytes) -> LibraryReport | None:
    lines = output.splitlines()
    return msgspec.json.decode(lines[-1], type=LibraryReport) if lines else None


def _failure(code: int, errors: bytes) -> str | None:
    """What ended a process, None when it came to its end: a signal, else the last line that it wrote."""
    if code == 0:
        return None
    if code < 0:
        return f"{signal.Signals(-code).name} ended it"
    said = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
    return said[-1] if said else f"it ended with {code}"
