"""How the process ends when it must not wait for anything any more."""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import threading
from collections.abc import Callable
from typing import NoReturn

from mlxd.daemon.last_words import flush_streams

# Seconds for what is still to be said: a log may be stuck at its disk or at whoever reads it.
_LAST_WORDS = 2.0


def leave(code: int, last_words: Callable[[], object] = lambda: None) -> NoReturn:
    """End with an exit code, after at most a few seconds for `last_words` and what the log still has to write.

    No thread is joined, and no destructor of a library runs: some are stuck or abort the process.
    """
    _within(_LAST_WORDS, last_words)
    os._exit(code)


def crash(last_words: Callable[[], object] = lambda: None) -> NoReturn:
    """End as `leave` does, but with SIGABRT: that is what both launchd and systemd call a crash, and start again."""
    _within(_LAST_WORDS, last_words)
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))  # it would hold all models, and say nothing
    faulthandler.disable()
    os.abort()


def _within(seconds: float, last_words: Callable[[], object]) -> None:
    thread = threading.Thread(target=_say, args=(last_words,), name="last-words", daemon=True)
    thread.start()
    thread.join(seconds)


def _say(last_words: Callable[[], object]) -> None:
    try:
        last_words()
    finally:
        logging.shutdown()
        flush_streams()
