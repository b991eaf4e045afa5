"""Peers in environments of their own under `.cache/peers`, made once."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

VERSIONS = {"vllm-mlx": "0.6.0", "mlx-openai-server": "1.7.1"}
"""What is compared: the newest for Python 3.11 when the figures were first made."""

NOT_ON_LINUX = {
    "mlx-openai-server": "on Linux it takes MLX's CUDA backend; with the CPU backend in its place, its mlx-lm calls "
    "mlx.core.new_thread_local_stream, which its mlx does not have"
}

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "peers"
INSTALL_TIMEOUT = 900.0


class PeerMissing(Exception):
    """It cannot be had here; the message says why."""


def python_of(peer: str) -> Path:
    """The Python of a peer's environment, which is made if it is not there. Raises PeerMissing."""
    if sys.platform == "linux" and peer in NOT_ON_LINUX:
        raise PeerMissing(f"{peer} {VERSIONS[peer]}: {NOT_ON_LINUX[peer]}")
    folder = FOLDER / f"{peer}-{VERSIONS[peer]}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        _install(peer, folder, python)
    return python


def _install(peer: str, folder: Path, python: Path) -> None:
    extra = "[cpu]" if sys.platform == "linux" else ""
    mlx = f"mlx{extra}=={importlib.metadata.version('mlx')}"
    wanted = [f"{peer}=={VERSIONS[peer]}", mlx]
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, capture_output=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted],
            check=True,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise PeerMissing(f"{peer}: not installed within {INSTALL_TIMEOUT:.0f} s") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:] or [f"pip ended with {error.returncode}"]
        raise PeerMissing(f"{peer}: {last[0]}") from error
    (folder / "complete").touch()
