"""Signatures of thinking blocks. A client gives a block back as it got it, and what was kept from it goes along.

A signature proves nothing here: any is taken.
"""

from __future__ import annotations

import base64
import binascii

_SHOWN = "mlxd:"
_HIDDEN = "mlxd+"


def signature(hidden: str = "") -> str:
    """The signature of a thought, of which `hidden` was not shown."""
    return _HIDDEN + base64.b64encode(hidden.encode()).decode() if hidden else _SHOWN


def hidden_in(signature: str) -> str:
    """The thought that a signature carries; "" for one that carries none or is another's."""
    if not signature.startswith(_HIDDEN):
        return ""
    try:
        return base64.b64decode(signature.removeprefix(_HIDDEN), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
