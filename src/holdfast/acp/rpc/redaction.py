"""Removes our secrets from agent output before it is shown or stored."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.acp.rpc.framing import (
    HEAD,
    Incoming,
    JsonRpcError,
    JsonRpcReply,
    JsonRpcRequest,
    Junk,
    parse_line,
)
from holdfast.domain.secrets import Scrubber


class LineRedactor:
    """Parses lines and removes secrets from them."""

    def __init__(
        self, scrubber: Callable[[], Scrubber], literal: frozenset[str] = frozenset()
    ) -> None:
        """Take a scrubber factory, called per line, and methods whose requests stay unredacted."""
        self._scrubber = scrubber
        self._literal = literal

    def read(self, line: bytes) -> Incoming:
        """Parse a line and return the message without secrets."""
        found = parse_line(line)
        if isinstance(found, Junk) or (
            isinstance(found, JsonRpcRequest) and found.method in self._literal
        ):
            return found
        scrubber = self._scrubber()
        try:
            cleaned = scrubber.redact_json(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # The line holds unpaired surrogates, which msgspec cannot decode.
            return _redact_message(found, scrubber.redact_text)
        return found if cleaned is line else parse_line(cleaned)

    def holds(self, *texts: str) -> bool:
        """Return whether one of the texts contains a managed secret."""
        scrubber = self._scrubber()
        return any(map(scrubber.holds, texts))

    def shows_mark(self, text: str) -> bool:
        """Return whether a secret was removed from the text, or its mark was written as such."""
        return self._scrubber().shows_mark(text)

    def for_display(self, junk: Junk) -> Junk:
        """Return a junk line redacted and shortened for display."""
        head_text = junk.head.decode("utf-8", "surrogateescape")
        head = self.text(head_text).encode("utf-8", "surrogateescape")
        return replace(junk, head=head[:HEAD])

    def text(self, text: str) -> str:
        """Return a text redacted for display."""
        return self._scrubber().redact_and_mask(text)


# For connections whose peer never receives a secret.
_NO_SECRETS: Final = Scrubber()
NO_REDACTION: Final = LineRedactor(lambda: _NO_SECRETS)


def _redact_message(message: Incoming, redact: Callable[[str], str]) -> Incoming:
    if isinstance(message, Junk):
        return message
    if not isinstance(message, JsonRpcReply):
        return replace(message, params=_redact_value(message.params, redact))
    error = message.error
    if error is not None:
        error = JsonRpcError(error.code, redact(error.message), _redact_value(error.data, redact))
    return replace(message, result=_redact_value(message.result, redact), error=error)


def _redact_value(value: Any, redact: Callable[[str], str]) -> Any:
    match value:
        case str():
            return redact(value)
        case dict():
            return {redact(key): _redact_value(each, redact) for key, each in value.items()}
        case list():
            return [_redact_value(each, redact) for each in value]
        case _:
            return value
