"""The scrubber: takes the secrets that we hold out of everything that is written down.

A value is found as it is, escaped as in JSON or in a URL, and in base64 at any place of a longer
text. Other disguises (hexadecimal, wrapped or doubled base64) are not seen through.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from holdfast.domain.credentials import JSON_TEXT, bytewise, mask_json, mask_text
from holdfast.domain.secrets import Secret

T = TypeVar("T")

# Shorter ones are left alone: they would be found in words that nobody meant to hide.
SHORTEST: Final = 8
_LINE_SHORTEST: Final = 16
# More than most keys are long, and little enough to be looked at again with every piece.
_SHOWN_LONGEST: Final = 1024

_RUN: Final = re.compile(r"[A-Za-z0-9]+")
_UNNAMEABLE: Final = re.compile(r"[^A-Za-z0-9_.:-]")
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(str)


class _Managed(Struct, frozen=True):
    """A secret in all its forms; `anchors` are texts of which every form holds one."""

    mark: str
    anchors: tuple[str, ...]
    pattern: re.Pattern[str]
    forms: tuple[str, ...]


class Scrubber:
    """Knows the managed secrets of one moment; it never changes."""

    def __init__(self, secrets: Iterable[tuple[str, Secret]] = ()) -> None:
        """Take each secret with the name that is shown instead; too short ones are left out."""
        named: dict[str, str] = {}
        for name, secret in secrets:
            named |= dict.fromkeys(_parts(secret.reveal()), name)
        # The longest first: a secret that begins like another must not leave its end behind.
        values = sorted((value for value in named if len(value) >= SHORTEST), key=len, reverse=True)
        self._managed = tuple(_managed(named[value], value) for value in values)
        self._anchors = tuple(
            bytewise(anchor) for managed in self._managed for anchor in managed.anchors
        )

    def clean(self, text: str) -> str:
        """Return the text with `[secret:name]` for each secret; the same object without one."""
        for managed in self._managed:
            for anchor in managed.anchors:
                if anchor in text:
                    text = managed.pattern.sub(managed.mark, text)
                    break
        return text

    def clean_json(self, encoded: bytes) -> bytes:
        """Return JSON without the secrets, valid as before; the same object if it has none.

        A text that is nothing but a word of the format itself stays: without its keys, tags and
        choices a record could not be read again.
        """
        # As text of one character a byte: Python finds text in text ten times as fast.
        view = encoded.decode("latin-1")
        for anchor in self._anchors:
            if anchor in view:
                return self._text_by_text(encoded)
        return encoded

    def cleaned(self, value: T) -> T:
        """Return a value made of structs without the secrets; the same object if it has none."""
        encoded = _encoder.encode(value)
        clean = self.clean_json(encoded)
        return value if clean is encoded else msgspec.json.decode(clean, type=type(value))

    def mask(self, encoded: bytes) -> bytes:
        """Return JSON with what looks like a credential masked; the same object if nothing does."""
        return mask_json(encoded)

    def clean_and_mask(self, text: str) -> str:
        """Return text that may be shown and logged: without secrets, and without credentials."""
        return mask_text(self.clean(text))

    def holds(self, text: str) -> bool:
        """Tell whether a managed secret stands in the text."""
        return self.clean(text) is not text

    def unfinished(self, text: str) -> int:
        """Return where a secret may begin whose end is still to come; the length if nowhere."""
        return min(
            (_begun(form, text) for managed in self._managed for form in managed.forms),
            default=len(text),
        )

    def _text_by_text(self, encoded: bytes) -> bytes:
        pieces: list[bytes] = []
        done = 0
        # Text by text, so that no replacement can cut an escape in two.
        for found in JSON_TEXT.finditer(encoded):
            text = _decoder.decode(found[1])
            cleaned = self.clean(text)
            if cleaned is not text and text not in _own_words():
                pieces += [encoded[done : found.start()], _encoder.encode(cleaned)]
                done = found.end(1)
        return b"".join([*pieces, encoded[done:]]) if pieces else encoded


class ScrubbedStream:
    """Text that comes in pieces, without the secrets that a piece's end would cut in two."""

    def __init__(self, scrubber: Callable[[], Scrubber]) -> None:
        """`scrubber` is asked for every piece, because a secret may have become known since."""
        self._scrubber = scrubber
        self._held = ""
        # The end of what was shown: the first half of a secret that nobody knew then.
        self._shown = ""

    def feed(self, text: str) -> str:
        """Return what can be shown; what may be the beginning of a secret waits for more."""
        scrubber = self._scrubber()
        shown = scrubber.clean(self._shown)
        cleaned = _behind(shown, scrubber.clean(shown + self._held + text))
        cut = scrubber.unfinished(cleaned)
        self._held = cleaned[cut:]
        self._shown = (shown + cleaned[:cut])[-_SHOWN_LONGEST:]
        return cleaned[:cut]

    def rest(self) -> str:
        """Return what has waited, because nothing more comes."""
        held, self._held, self._shown = self._held, "", ""
        return held


def _behind(shown: str, cleaned: str) -> str:
    """Return what comes after that which was shown; a secret that begins in it comes as a mark."""
    if cleaned.startswith(shown):
        return cleaned[len(shown) :]
    pairs = enumerate(zip(shown, cleaned, strict=False))
    return cleaned[next((at for at, (one, other) in pairs if one != other), len(cleaned)) :]


def _own_words() -> set[str]:
    """Return every word that records are made of: keys, tags and choices."""
    words: set[str] = set()
    waiting: list[Any] = [Struct, StrEnum]
    while waiting:
        # Looked up when it is needed and not before: modules that are imported later have some.
        for kind in waiting.pop().__subclasses__():
            if kind.__module__.startswith("holdfast."):
                waiting.append(kind)
                words |= _words_of(kind)
    return words


def _words_of(kind: Any) -> set[str]:
    if issubclass(kind, StrEnum):
        return set(map(str, kind))
    config = kind.__struct_config__
    return {*kind.__struct_encode_fields__, str(config.tag), str(config.tag_field)}


def _parts(value: str) -> list[str]:
    """Return a value, and of one with several lines also the lines, but for its frame.

    Lines are numbered, indented and compared with others, and then stand apart.
    """
    lines = [line.strip() for line in value.splitlines()]
    long = [line for line in lines if len(line) >= _LINE_SHORTEST and not line.startswith("-----")]
    return [value, *long] if len(lines) > 1 else [value]


def _managed(name: str, value: str) -> _Managed:
    written = (value, *_base64_cores(value.encode("utf-8", "surrogatepass")))
    return _Managed(
        mark=f"[secret:{_UNNAMEABLE.sub('_', name)}]",
        # Letters and digits are never escaped; a value without any is looked for in every text.
        anchors=tuple(max(_RUN.findall(form), key=len, default="") for form in written),
        pattern=re.compile("|".join("".join(map(_anyhow, form)) for form in written)),
        forms=tuple(dict.fromkeys(spelled for form in written for spelled in _spelled(form))),
    )


def _base64_cores(value: bytes) -> Iterator[str]:
    """Yield what is sure to be seen of a value in base64, wherever in a longer text it begins."""
    for offset in range(3):
        encoded = base64.b64encode(bytes(offset) + value).decode()
        # The first characters also depend on what is before the value, the last on what follows.
        yield encoded[-(-offset * 8 // 6) : (offset + len(value)) * 8 // 6]


def _spelled(form: str) -> Iterator[str]:
    """Yield a form as it is, in both alphabets of base64, in JSON and in a URL."""
    yield form
    yield form.replace("+", "-").replace("/", "_")
    yield json.dumps(form, ensure_ascii=False)[1:-1]
    yield json.dumps(form)[1:-1]
    encoded = quote(form, safe="", errors="surrogatepass")
    yield encoded
    yield re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), encoded)


def _anyhow(character: str) -> str:
    """Return the pattern of a character in any spelling, also escaped twice."""
    if character.isascii() and character.isalnum():
        return character
    # The alphabet for URLs has two other characters.
    plain = {"+": "[+-]", "/": "[/_]", " ": "[ +]"}.get(character, re.escape(character))
    octets = "".join(f"%{octet:02x}" for octet in character.encode("utf-8", "surrogatepass"))
    units = character.encode("utf-16-be", "surrogatepass").hex()
    escapes = "".join(rf"\\{{1,3}}u{units[at : at + 4]}" for at in range(0, len(units), 4))
    short = json.dumps(character)[1:-1] if character < " " else character
    return rf"(?:\\{{0,3}}{plain}|\\{{1,3}}{re.escape(short[-1])}|(?i:{octets}|{escapes}))"


def _begun(form: str, text: str) -> int:
    """Return where the text ends with a beginning of the form; its length if it does not."""
    at = text.find(form[0], max(0, len(text) - len(form) + 1))
    while at >= 0:
        if form.startswith(text[at:]):
            return at
        at = text.find(form[0], at + 1)
    return len(text)
