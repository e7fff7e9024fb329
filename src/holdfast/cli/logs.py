"""Logs: to stderr, one event on one line; JSON if stderr is not a terminal.

Every text in an event is truncated and redacted. Control characters are escaped in both formats, so
that text cannot forge a line (log injection).
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
# Ids, by which `holdfast token list` finds what made a request; no token can be derived from one.
_PUBLIC: Final = frozenset({"token_id"})
# More text is redacted than is printed, because a secret cut in two is not recognized.
_MARGIN: Final = 16_000
_INTEGER_LARGEST: Final = 1 << 63
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

ScrubberProvider = Callable[[], Scrubber]


def configure(
    level: str, stream: TextIO | None = None, scrubber: ScrubberProvider | None = None
) -> None:
    """Send all logs of this process to stderr, from a level on; replaces earlier settings.

    `scrubber` is called for each event, because secrets become known while a process runs. Without
    it, only secrets of the environment are redacted.
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
    # At DEBUG they would write the headers of responses, cookies included.
    for name in ("httpcore2", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)


def scrub_with(scrubber: ScrubberProvider) -> None:
    """Redact the secrets of a store that was opened after the logs were configured."""
    for handler in _our_handlers():
        if isinstance(handler.formatter, LineFormatter):
            handler.formatter.scrubber = scrubber


def current_scrubber() -> Scrubber:
    """Return the scrubber in use; before the logs are configured, that of the environment."""
    for handler in _our_handlers():
        if isinstance(handler.formatter, LineFormatter):
            return handler.formatter.scrubber()
    return _scrubber_of_environment()()


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes events; drops an event, without raising, if memory is exhausted."""

    def handle(self, record: logging.LogRecord) -> bool:
        try:
            return super().handle(record)
        # Reporting it would need memory, too; raising would end the code that logs.
        except MemoryError:
            return False


class LineFormatter(logging.Formatter):
    """Formats the parts of an event, each of them redacted and escaped."""

    def __init__(self, scrubber: ScrubberProvider) -> None:
        super().__init__()
        self.scrubber = scrubber

    def message(self, record: logging.LogRecord) -> str:
        """Return the message of an event, even if its arguments do not fit the format."""
        try:
            text = record.getMessage()
        # Any exception: the logging library would print the arguments unredacted.
        except Exception:  # noqa: BLE001
            text = f"{_text_of(record.msg)} (arguments do not match the format)"
        return self._safe(text, MESSAGE_LONGEST)

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the event's fields: numbers unchanged, everything else as text."""
        given = getattr(record, "fields", None)
        if not isinstance(given, Mapping):
            return {}
        return {
            self._safe(_text_of(name), FIELD_LONGEST): self._field(_text_of(name), value)
            for name, value in islice(given.items(), FIELDS_MOST)
        }

    def trace(self, record: logging.LogRecord) -> str:
        """Return the event's exception; of a long one only the end, which has the reason."""
        if not record.exc_info:
            return ""
        text = self.formatException(record.exc_info)[-TRACE_LONGEST - _MARGIN :]
        cleaned = self.scrubber().redact_and_mask(text)
        return cleaned if len(cleaned) <= TRACE_LONGEST else f"…{cleaned[-TRACE_LONGEST:]}"

    def _field(self, name: str, value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and abs(value) < _INTEGER_LARGEST:
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        is_secret = is_secret_name(name) and name not in _PUBLIC
        return MASK if is_secret else self._safe(_text_of(value), FIELD_LONGEST)

    def _safe(self, text: str, longest: int) -> str:
        cleaned = self.scrubber().redact_and_mask(text[: longest + _MARGIN])
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
        # Standard keys last, so that a field cannot replace them.
        event = event | self.fields(record) | event
        # ASCII only: control characters, direction marks and invalid bytes are escaped.
        return json.dumps(event)


class PlainFormatter(LineFormatter):
    """One line for a person."""

    def format(self, record: logging.LogRecord) -> str:
        fields = self.fields(record)
        text = [self.message(record), *(f"{name}={value}" for name, value in fields.items())]
        line = escape_control(f"{record.levelname.lower()}: {' '.join(text)}")
        if trace := self.trace(record):
            # Indented, so that a trace line cannot be mistaken for an event.
            line = "\n".join([line, *(f"  {escape_control(each)}" for each in trace.splitlines())])
        return line


def escape_control(text: str) -> str:
    """Return the text with control characters escaped."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _our_handlers() -> list[logging.Handler]:
    # Only our own: a test runner or a host program may have handlers, too.
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
    # A value that cannot be formatted must not lose the event.
    except Exception:  # noqa: BLE001
        return f"a {type(value).__name__} that cannot be printed"
