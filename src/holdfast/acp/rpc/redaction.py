"""Removes our secrets from what an agent sends, before it is shown or stored."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.acp.rpc.framing import HEAD, Incoming, Junk, Reply, Request, RpcError, parse
from holdfast.domain.secrets import Scrubber


class Censor:
    """Reads lines as they may be kept."""

    def __init__(
        self, scrubber: Callable[[], Scrubber], literal: frozenset[str] = frozenset()
    ) -> None:
        """Ask for a scrubber each time; `literal` are requests that we act on as they came."""
        self._scrubber = scrubber
        self._literal = literal

    def read(self, line: bytes) -> Incoming:
        """Return what a line says, without the secrets."""
        found = parse(line)
        if isinstance(found, Junk) or (
            isinstance(found, Request) and found.method in self._literal
        ):
            return found
        scrubber = self._scrubber()
        try:
            cleaned = scrubber.clean_json(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # Half a character is in it, which nobody else can read.
            return _cleaned(found, scrubber.clean)
        return found if cleaned is line else parse(cleaned)

    def holds(self, *texts: str) -> bool:
        """Tell whether a secret of ours stands in one of the texts."""
        scrubber = self._scrubber()
        return any(map(scrubber.holds, texts))

    def shown(self, junk: Junk) -> Junk:
        """Return a line that is no message as it may be shown."""
        told = junk.head.decode("utf-8", "surrogateescape")
        head = self.text(told).encode("utf-8", "surrogateescape")
        return replace(junk, head=head[:HEAD])

    def text(self, text: str) -> str:
        """Return a text as it may be shown."""
        return self._scrubber().clean_and_mask(text)


# For those who hold no secrets that could come back.
_KNOWS_NONE: Final = Scrubber()
CARELESS: Final = Censor(lambda: _KNOWS_NONE)


def _cleaned(found: Incoming, clean: Callable[[str], str]) -> Incoming:
    if isinstance(found, Junk):
        return found
    if not isinstance(found, Reply):
        return replace(found, params=_walked(found.params, clean))
    error = found.error
    if error is not None:
        error = RpcError(error.code, clean(error.message), _walked(error.data, clean))
    return replace(found, result=_walked(found.result, clean), error=error)


def _walked(value: Any, clean: Callable[[str], str]) -> Any:
    match value:
        case str():
            return clean(value)
        case dict():
            return {clean(key): _walked(each, clean) for key, each in value.items()}
        case list():
            return [_walked(each, clean) for each in value]
        case _:
            return value
