"""Stands between a client and a program, and writes down what each of them says.

`python tee.py FILE -- PROGRAM ARGS…`, standard library only. A line of the file is the side that
spoke, a space and the line as it was.
"""

import os
import subprocess
import sys
import threading
from contextlib import suppress
from typing import BinaryIO


def main() -> int:
    """Pass everything on until both have ended; return what the program returned."""
    if sys.argv[2:3] != ["--"] or len(sys.argv) < 4:
        return 2
    name, command = sys.argv[1], sys.argv[3:]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    with open(name, "ab", buffering=0) as record:
        listening = threading.Thread(
            target=_pass_on, args=(sys.stdin.buffer, child.stdin, record, b"client "), daemon=True
        )
        listening.start()
        _pass_on(child.stdout, sys.stdout.buffer, record, b"agent ")
        return child.wait()


def _pass_on(source: BinaryIO, target: BinaryIO, record: BinaryIO, who: bytes) -> None:
    for line in source:
        # Before it is passed on, so that the order in the file is the order of causes.
        record.write(who + line)
        try:
            target.write(line)
            target.flush()
        except OSError:
            break
    with suppress(OSError):
        target.close()


if __name__ == "__main__":
    code = main()
    sys.stdout = None  # type: ignore[assignment]
    os._exit(code if code >= 0 else 128 - code)
