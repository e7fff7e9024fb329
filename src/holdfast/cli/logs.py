"""Logs: to stderr, one event on one line; JSON where no person reads along.

Every text in an event is cut, freed of secrets and credentials, and cannot forge a line: control
characters are escaped in both forms.
"""

import json
import logging
import math
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, TextIO

from holdfast.cli.terminal import is_terminal
from holdfast.domain.secrets import MASK, Scrubber, is_secret_name

MESSAGE_LONGEST: Final = 8_000
FIELD_LONGEST: Final = 2_000
TRACE_LONGEST: Final = 16_000
FIELDS_MOST: Final = 32
# So much more is cleaned than is kept: a secret that is cut in two is not recognised.
_MARGIN: Final = 16_000
_INTEGER_LARGEST: Final = 1 << 63
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

ScrubberProvider = Callable[[], Scrubber]


def configure(
    level: str, stream: TextIO | None = None, scrubber: ScrubberProvider | None = None
) -> None:
    """Send all logs of this process to stderr, from a level on; replaces what was set before.

    `scrubber` is asked for at each event, because secrets become known while a process runs.
    Without one, those of the environment are known.
    """
    target = stream or sys.stderr
    handler = LogHandler(target)
    kind = PlainFormatter if is_terminal(target) else JsonFormatter
    handler.setFormatter(kind(scrubber or _scrubber_of_environment()))
    root = logging.getLogger()
    for old in _our_handlers():
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())


def scrub_with(scrubber: ScrubberProvider) -> None:
    """Let the logs know the secrets of a house that was opened after they were configured."""
    for handler in _our_handlers():
        if isinstance(handler.formatter, LineFormatter):
            handler.formatter.scrubber = scrubber


def current_scrubber() -> Scrubber:
    """Return what the logs know of secrets now; before they are configured, the environment's."""
    for handler in _our_handlers():
        if isinstance(handler.formatter, LineFormatter):
            return handler.formatter.scrubber()
    return _scrubber_of_environment()()


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes events; one that there is no memory for is lost, and nothing but the event."""

    def handle(self, record: logging.LogRecord) -> bool:
        try:
            return super().handle(record)
        # To say so would take memory, too; raised, it would end whoever wanted to log.
        except MemoryError:
            return False


class LineFormatter(logging.Formatter):
    """The parts of an event, each of them safe to be written."""

    def __init__(self, scrubber: ScrubberProvider) -> None:
        super().__init__()
        self.scrubber = scrubber

    def message(self, record: logging.LogRecord) -> str:
        """Return what the event says, also where its arguments do not fit."""
        try:
            text = record.getMessage()
        # Whatever it is: the library's way out would print the arguments as they are.
        except Exception:  # noqa: BLE001
            text = f"{_text_of(record.msg)} (and arguments that do not fit)"
        return self._safe(text, MESSAGE_LONGEST)

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the event's fields: numbers as they are, everything else as text."""
        given = getattr(record, "fields", None)
        if not isinstance(given, Mapping):
            return {}
        return {
            self._safe(_text_of(name), FIELD_LONGEST): self._field(_text_of(name), value)
            for name, value in islice(given.items(), FIELDS_MOST)
        }

    def trace(self, record: logging.LogRecord) -> str:
        """Return the event's exception; of a long one only the end, where the reason stands."""
        if not record.exc_info:
            return ""
        text = self.formatException(record.exc_info)[-TRACE_LONGEST - _MARGIN :]
        cleaned = self.scrubber().clean_and_mask(text)
        return cleaned if len(cleaned) <= TRACE_LONGEST else f"…{cleaned[-TRACE_LONGEST:]}"

    def _field(self, name: str, value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and abs(value) < _INTEGER_LARGEST:
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        return MASK if is_secret_name(name) else self._safe(_text_of(value), FIELD_LONGEST)

    def _safe(self, text: str, longest: int) -> str:
        cleaned = self.scrubber().clean_and_mask(text[: longest + _MARGIN])
        return cleaned if len(cleaned) <= longest else f"{cleaned[:longest]}… ({len(text)})"


class JsonFormatter(LineFormatter):
    """One JSON object for each event; `fields` of the record become keys."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        event: dict[str, Any] = {
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.message(record),
        }
        if trace := self.trace(record):
            event["exception"] = trace
        # Ours last: a field cannot take the place of what the event says of itself.
        event = event | self.fields(record) | event
        # Only ASCII: no control character, no direction mark and no bad byte gets through.
        return json.dumps(event)


class PlainFormatter(LineFormatter):
    """One line for a person."""

    def format(self, record: logging.LogRecord) -> str:
        fields = self.fields(record)
        text = [self.message(record), *(f"{name}={value}" for name, value in fields.items())]
        line = escape_control(f"{record.levelname.lower()}: {' '.join(text)}")
        if trace := self.trace(record):
            # Indented, so that no line of a trace can pass for an event.
            line = "\n".join([line, *(f"  {escape_control(each)}" for each in trace.splitlines())])
        return line


def escape_control(text: str) -> str:
    """Return the text with control characters written out."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _our_handlers() -> list[logging.Handler]:
    # Only our own: a test runner or a host program may have handlers there, too.
    return [
        each for each in logging.getLogger().handlers if isinstance(each.formatter, LineFormatter)
    ]


def _scrubber_of_environment() -> ScrubberProvider:
    from holdfast.cli.secrets import secrets_here

    secrets = secrets_here()
    return lambda: secrets.scrubber


def _text_of(value: object) -> str:
    try:
        return str(value)
    # A value that cannot be shown must not cost us the event.
    except Exception:  # noqa: BLE001
        return f"a {type(value).__name__} that cannot be shown"
