"""A process that takes memory at a steady pace and keeps it until its input ends.

`python outside_hog.py MIB_PER_S MIB AT_ONCE` takes and touches so many MiB in all, in steps of 8 MiB, of them AT_ONCE
without a pause, and then prints a line.
"""

from __future__ import annotations

import sys
import time

STEP = 8


def main(mib_per_s: int, mib: int, at_once: int) -> None:
    held = [bytearray(b"1") * (STEP << 20) for _ in range(at_once // STEP)]
    due = time.monotonic()
    while STEP * len(held) < mib:
        held.append(bytearray(b"1") * (STEP << 20))
        due += STEP / mib_per_s
        time.sleep(max(0.0, due - time.monotonic()))
    sys.stdout.write(f"{STEP * len(held)} MiB\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
