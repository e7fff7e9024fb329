"""Logs: to stderr, one event on one line; JSON where no person reads along.

Control characters are escaped in both forms, so that a logged text cannot forge a line.
"""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Final, TextIO

from holdfast.cli.terminal import is_terminal

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def configure(level: str, stream: TextIO | None = None) -> None:
    """Send all logs of this process to stderr, from a level on; replaces what was set before."""
    target = stream or sys.stderr
    handler = logging.StreamHandler(target)
    handler.setFormatter(PlainLines() if is_terminal(target) else JsonLines())
    root = logging.getLogger()
    for old in root.handlers[:]:
        # Only our own: a test runner or a host program may have handlers there, too.
        if isinstance(old.formatter, PlainLines | JsonLines):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())


class JsonLines(logging.Formatter):
    """One JSON object for each event; `fields` of the record become keys."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        event = {
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        # Only ASCII: no control character, no direction mark and no bad byte gets through.
        return json.dumps(event, default=str)


class PlainLines(logging.Formatter):
    """One line for a person."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        told = [record.getMessage(), *(f"{name}={value}" for name, value in fields.items())]
        line = escaped(f"{record.levelname.lower()}: {' '.join(told)}")
        if record.exc_info:
            trace = self.formatException(record.exc_info).splitlines()
            # Indented, so that no line of a trace can pass for an event.
            line = "\n".join([line, *(f"  {escaped(each)}" for each in trace)])
        return line


def escaped(text: str) -> str:
    """Return the text with control characters written out."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
