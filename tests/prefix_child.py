"""A program that stores prefixes and may stop at any byte, to be killed there.

`prefix_child.py MODEL FOLDER IDENTITY [--stop-at-byte N | --stop-at-sync N] [--file-limit N] WORD...` stores one entry
for each word, then prints its stats as JSON. It prints "stopped" and waits for ever where it was told to stop.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prefix_store import disk_at, entry_for, settle

from mlxd.engines import prefix_files


def _stop() -> None:
    _say("stopped")
    threading.Event().wait()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _stop_at_byte(count: int) -> None:
    write, left = prefix_files._write_all, [count]

    def counted(file: Any, piece: memoryview) -> None:
        if len(piece) >= left[0]:
            write(file, piece[: left[0]])
            _stop()
        left[0] -= len(piece)
        write(file, piece)

    prefix_files._write_all = counted


def _stop_at_sync(count: int) -> None:
    sync, left = os.fsync, [count]

    def counted(descriptor: int) -> None:
        sync(descriptor)
        left[0] -= 1
        if not left[0]:
            _stop()

    os.fsync = counted


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("identity")
    parser.add_argument("--stop-at-byte", type=int)
    parser.add_argument("--stop-at-sync", type=int)
    parser.add_argument("--file-limit", type=int)
    parser.add_argument("words", nargs="+")
    options = parser.parse_args()
    entries = [entry_for(options.model, word) for word in options.words]
    if options.stop_at_byte:
        _stop_at_byte(options.stop_at_byte)
    if options.stop_at_sync:
        _stop_at_sync(options.stop_at_sync)
    if options.file_limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (options.file_limit, options.file_limit))
    with disk_at(options.folder, options.identity) as disk:
        for entry in entries:
            disk.store(entry)
            settle(disk._folder)
        _say(json.dumps(asdict(disk.stats())))


if __name__ == "__main__":
    sys.exit(main())
