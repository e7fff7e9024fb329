"""Secrets: a wrapper type, the shapes of credentials, and the scrubber that redacts both."""

import base64
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

_HIDDEN: Final = "[secret]"


class Secret:
    """A text that only `reveal` returns.

    Printing, formatting and logging show a placeholder instead. Encoding and pickling are refused.
    Copying returns the same object.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the text; call it only in the transport that sends the secret."""
        return self._value

    def __repr__(self) -> str:
        return _HIDDEN

    def __format__(self, _: str) -> str:
        # Ignore the format specification, because `{key:>40}` must not reveal the value.
        return _HIDDEN

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, _: object) -> "Secret":
        return self

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise TypeError("A secret is not written down.")


MASK: Final = "[masked]"


class CredentialShape(Struct, frozen=True, kw_only=True):
    """A credential pattern that starts at one of its marks; the group `secret` is redacted.

    `marks` are in lower case. A match of a loose shape is masked, but its text is not refused.
    """

    marks: tuple[str, ...]
    pattern: str
    is_loose: bool = False


# Excludes brackets, dollars and stars, because they start a placeholder such as `${TOKEN}`.
_VALUE: Final = r"[^\s\"'`,;&<>(){}\[\]|\\$*]"
_QUOTE: Final = r"(?:\\{0,3}[\"'])?"
_IS: Final = rf"{_QUOTE}\s{{0,3}}(?:=|:(?!//))\s{{0,3}}{_QUOTE}"
# A value that contains a digit but is not just a number.
_CRYPTIC: Final = (
    rf"(?P<secret>(?={_VALUE}{{0,64}}?[0-9])(?![0-9.:/-]++(?!{_VALUE})){_VALUE}{{8,4096}}+)"
)
_IN_URL: Final = r"[^\s/@:\"'?#<>\\]"
_IN_QUERY: Final = r"[^&\s\"'<>#\\]"
# Where a word may start: also after an escaped line break or an ANSI colour code.
_START: Final = r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt])|(?<=[0-9]m))"
_SECRET_KEY: Final = "|".join(
    f"(?<={kind}key)|(?<={kind}[_-]key)"
    for kind in ("api", "access", "private", "account", "signing", "master", "auth", "secret")
)
# "tokens" is excluded, because it usually names a count.
_NAME: Final = (
    rf"(?:key(?:{_SECRET_KEY})|secret(?!ar)|token(?!s|i[sz])|passw(?:or)?d|passphrase|pwd"
    r"|credential|authorization)"
)
_NAME_MARKS: Final = (
    *("key", "secret", "token", "passw", "passphrase", "pwd", "credential", "authorization"),
)
# Key prefixes of the large providers, and the pattern of the whole key.
_PREFIXES: Final[Mapping[str, str]] = {
    "sk-": r"sk-(?=[A-Za-z_-]{0,64}[0-9])[A-Za-z0-9_-]{16,512}+",
    "aiza": r"AIza[A-Za-z0-9_-]{30,512}+",
    "ghp_": r"ghp_[A-Za-z0-9]{20,512}+",
    "gho_": r"gho_[A-Za-z0-9]{20,512}+",
    "ghs_": r"ghs_[A-Za-z0-9]{20,512}+",
    "ghu_": r"ghu_[A-Za-z0-9]{20,512}+",
    "ghr_": r"ghr_[A-Za-z0-9]{20,512}+",
    "github_pat_": r"github_pat_[A-Za-z0-9_]{20,512}+",
    "xox": r"xox[a-z]-[A-Za-z0-9-]{10,512}+",
    "xapp-": r"xapp-[0-9]-[A-Za-z0-9-]{10,512}+",
    "akia": r"AKIA[A-Z0-9]{16}(?![A-Za-z0-9])",
    "asia": r"ASIA[A-Z0-9]{16}(?![A-Za-z0-9])",
    "glpat-": r"glpat-[A-Za-z0-9_-]{16,512}+",
    # Holdfast tokens, which always contain a capital letter, and Hugging Face tokens.
    "hf_": r"hf_(?:(?=[a-z0-9_-]{0,42}[A-Z])[A-Za-z0-9_-]{43,512}+|[A-Za-z0-9]{20,512}+)",
    "sk_": r"sk_(?:live|test)_[A-Za-z0-9]{16,512}+",
    "rk_": r"rk_(?:live|test)_[A-Za-z0-9]{16,512}+",
    "gsk_": r"gsk_[A-Za-z0-9]{20,512}+",
    "xai-": r"xai-[A-Za-z0-9]{20,512}+",
    "npm_": r"npm_[A-Za-z0-9]{30,512}+",
    "pypi-": r"pypi-[A-Za-z0-9_-]{40,512}+",
    "ya29.": r"ya29\.[A-Za-z0-9_-]{20,512}+",
    "sg.": r"SG\.[A-Za-z0-9_-]{16,64}+\.[A-Za-z0-9_-]{16,512}+",
    "dop_v1_": r"dop_v1_[a-f0-9]{40,512}+",
    # A JSON Web Token.
    "eyj": r"eyJ[A-Za-z0-9_-]{8,2048}+\.[A-Za-z0-9_-]{8,8192}+\.[A-Za-z0-9_-]{8,2048}+",
}
# Every repetition is bounded or possessive, so that untrusted text cannot cause ReDoS.
_PATTERNS: Final[Mapping[tuple[str, ...], str]] = {
    # A private key, up to the next dashes.
    ("-----begin",): r"-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:\\{1,4}[nr]|\s){0,8}(?=[A-Za-z0-9+/]{16}|[A-Z][A-Za-z-]{2,20}: )"
    r"(?P<secret>[^-]*+(?:-(?!----)[^-]*+)*+)",
    ("authorization",): rf"(?i:authorization){_IS}(?i:(?:bearer|basic|token|digest)\s{{1,3}})?"
    rf"(?P<secret>(?!(?i:bearer|basic)\b){_VALUE}{{8,4096}}+)",
    # Both are also English words, so the text after them must not be a word.
    ("bearer", "basic"): r"(?<![A-Za-z0-9])(?i:bearer|basic)\s{1,3}(?P<secret>"
    r"(?=[A-Za-z+/._~-]{0,64}[0-9]|[A-Za-z+/._~-]{24})[A-Za-z0-9+/._~=-]{8,4096}+)",
    # name=value and its variants.
    _NAME_MARKS: rf"(?=[A-Za-z0-9_-]{{3,48}}+{_IS})(?i:{_NAME}[a-z0-9_-]{{0,32}}){_IS}{_CRYPTIC}",
    # https://user:password@host, or one long word before the host.
    ("://",): rf"://(?P<secret>{_IN_URL}{{0,256}}:[^\s/@\"'?#<>\\]{{1,256}}"
    rf"|{_IN_URL}{{16,256}})(?=@)",
    # ?key=value
    ("key=", "sig=", "auth=", "code="): r"(?<=[?&;])(?i:key|sig|auth|code)="
    rf"(?P<secret>(?={_IN_QUERY}{{0,64}}?[0-9]){_IN_QUERY}{{8,4096}}+)",
    ("signature=",): rf"(?i:signature)=(?P<secret>{_IN_QUERY}{{16,4096}}+)",
}
_LOOSE: Final = (
    r"(?i:passw(?:or)?d|passphrase|pwd|secret|token)="
    rf"(?P<secret>(?!(?i:true|false|null|none)\b)[A-Za-z]{_VALUE}{{3,4096}}+)"
)
SHAPES: Final = (
    *(CredentialShape(marks=marks, pattern=pattern) for marks, pattern in _PATTERNS.items()),
    *(
        CredentialShape(marks=(mark,), pattern=rf"{_START}(?P<secret>{rest})")
        for mark, rest in _PREFIXES.items()
    ),
    CredentialShape(
        marks=("passw", "passphrase", "pwd", "secret", "token"), pattern=_LOOSE, is_loose=True
    ),
)
_EVERY_MARK: Final = sorted({mark for shape in SHAPES for mark in shape.marks})
# Scanning for these is enough: a mark that contains another one can only occur together with it.
_MARKS: Final = tuple(
    mark for mark in _EVERY_MARK if not any(other in mark for other in _EVERY_MARK if other != mark)
)
_SECRET_NAME: Final = rf"(?i:{_NAME})"
# A JSON string, and the colon after it if the string is an object key.
JSON_TEXT: Final = re.compile(rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")([ \t\r\n]*:[ \t\r\n]*)?', re.DOTALL)
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(str)


def is_secret_name(name: str) -> bool:
    """Return whether a name alone marks its value as a secret."""
    return _compiled(_SECRET_NAME).search(name) is not None


def is_credential(text: str, name: str = "") -> bool:
    """Return whether a text contains a credential; the name of the value may mark it as one."""
    assignment = f"{name}={text}" if is_secret_name(name) else text
    strict = (shape for shape in SHAPES if not shape.is_loose)
    return next(iter(_spans(bytewise(assignment), strict)), None) is not None


def mask_text(text: str) -> str:
    """Return the text with its credentials masked; the same object if there are none."""
    view = bytewise(text)
    spans = sorted(_spans(view, SHAPES))
    if not spans:
        return text
    pieces, done = [], 0
    for begin, end in spans:
        # Skip overlaps, because two shapes may match the same credential.
        if begin >= done:
            pieces += [view[done:begin], MASK]
        done = max(done, end)
    return "".join([*pieces, view[done:]]).encode("latin-1").decode("utf-8", "surrogatepass")


def mask_json(encoded: bytes) -> bytes:
    """Return JSON with its credentials masked, still valid; the same object if there are none."""
    lowered = encoded.lower().decode("latin-1")
    for mark in _MARKS:
        if mark in lowered:
            break
    else:
        return encoded
    marked = sorted(at for mark in _MARKS for at in _places(mark, lowered))
    pieces: list[bytes] = []
    done, named_until = 0, -1
    # Replace string by string, so that the JSON around each one stays valid.
    for found in JSON_TEXT.finditer(encoded):
        is_named = found.start() == named_until
        nearest = bisect_left(marked, found.start())
        if not is_named and (nearest == len(marked) or marked[nearest] >= found.end(1)):
            continue
        text = _decoder.decode(found[1])
        # Mask the whole value, because its key marks it as a secret.
        masked = MASK if is_named and not found[2] and len(text) >= 4 else mask_text(text)
        named_until = found.end() if found[2] and is_secret_name(text) else -1
        if masked != text:
            pieces += [encoded[done : found.start()], _encoder.encode(masked)]
            done = found.end(1)
    return b"".join([*pieces, encoded[done:]]) if pieces else encoded


def _spans(view: str, shapes: Iterable[CredentialShape]) -> Iterable[tuple[int, int]]:
    """Yield the spans of secrets, shape by shape."""
    lowered = view.encode("latin-1").lower().decode("latin-1")
    for shape in shapes:
        for mark in shape.marks:
            at = lowered.find(mark)
            while at >= 0:
                found = _compiled(shape.pattern).match(view, at)
                if found is not None:
                    yield found.span("secret")
                at = lowered.find(mark, found.end() if found else at + 1)


# Compiled on first use, because compiling all patterns would add 20 ms to every start.
@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def _places(mark: str, text: str) -> Iterable[int]:
    at = text.find(mark)
    while at >= 0:
        yield at
        at = text.find(mark, at + 1)


def bytewise(text: str) -> str:
    """Return the text's UTF-8 bytes, one character per byte (Latin-1).

    Lower-casing then preserves the length, and Python searches in str ten times as fast as in
    bytes.
    """
    return text.encode("utf-8", "surrogatepass").decode("latin-1")


T = TypeVar("T")
# Shorter secrets are not redacted, because they would match parts of ordinary words.
SHORTEST: Final = 8
_LINE_SHORTEST: Final = 16
# Longer than most keys, and short enough to scan again with every chunk.
_SHOWN_LONGEST: Final = 1024
_RUN: Final = re.compile(r"[A-Za-z0-9]+")
_UNNAMEABLE: Final = re.compile(r"[^A-Za-z0-9_.:-]")


class _Managed(Struct, frozen=True):
    """A secret with all its encoded forms; every form contains one of the `anchors`."""

    mark: str
    anchors: tuple[str, ...]
    pattern: re.Pattern[str]
    forms: tuple[str, ...]


class Scrubber:
    """Redacts a fixed set of managed secrets; immutable."""

    def __init__(self, secrets: Iterable[tuple[str, Secret]] = ()) -> None:
        """Take each secret with the name shown instead; secrets that are too short are skipped."""
        named: dict[str, str] = {}
        for name, secret in secrets:
            named |= dict.fromkeys(_parts(secret.reveal()), name)
        # Longest first, because replacing a prefix first would leave the rest of a longer secret
        # visible.
        values = sorted((value for value in named if len(value) >= SHORTEST), key=len, reverse=True)
        self._managed = tuple(_managed(named[value], value) for value in values)
        self.has_secrets = bool(self._managed)
        self._anchors = tuple(
            bytewise(anchor) for managed in self._managed for anchor in managed.anchors
        )

    def redact_text(self, text: str) -> str:
        """Return the text with `[secret:name]` for each secret; the same object if none."""
        for managed in self._managed:
            for anchor in managed.anchors:
                if anchor in text:
                    text = managed.pattern.sub(managed.mark, text)
                    break
        return text

    def redact_json(self, encoded: bytes) -> bytes:
        """Return JSON with the secrets redacted, still valid; the same object if there are none.

        A string equal to a word of the format (key, tag or enum value) is not replaced, because the
        record could not be decoded without it.
        """
        if not self._anchors:
            return encoded
        # Search as Latin-1 text, because Python searches in str ten times as fast as in bytes.
        view = encoded.decode("latin-1")
        for anchor in self._anchors:
            if anchor in view:
                return self._text_by_text(encoded)
        return encoded

    def redact_value(self, value: T) -> T:
        """Return a value made of structs with the secrets redacted; the same object if none."""
        encoded = _encoder.encode(value)
        clean = self.redact_json(encoded)
        return value if clean is encoded else msgspec.json.decode(clean, type=type(value))

    def mask(self, encoded: bytes) -> bytes:
        """Return JSON with likely credentials masked; the same object if there are none."""
        return mask_json(encoded)

    def redact_and_mask(self, text: str) -> str:
        """Return text that is safe to show and log: secrets redacted, credentials masked."""
        return mask_text(self.redact_text(text))

    def holds(self, text: str) -> bool:
        """Return whether the text contains a managed secret."""
        return self.has_secrets and self.redact_text(text) is not text

    def shows_mark(self, text: str) -> bool:
        """Return whether the text contains the mark of a redacted secret."""
        return any(managed.mark in text for managed in self._managed)

    def unfinished(self, text: str) -> int:
        """Return the index at which an incomplete secret may start; the length if there is none."""
        return min(
            (_find_prefix(form, text) for managed in self._managed for form in managed.forms),
            default=len(text),
        )

    def _text_by_text(self, encoded: bytes) -> bytes:
        pieces: list[bytes] = []
        done = 0
        # Replace string by string, because a replacement must not split an escape sequence.
        for found in JSON_TEXT.finditer(encoded):
            text = _decoder.decode(found[1])
            cleaned = self.redact_text(text)
            if cleaned is not text and text not in _own_words():
                pieces += [encoded[done : found.start()], _encoder.encode(cleaned)]
                done = found.end(1)
        return b"".join([*pieces, encoded[done:]]) if pieces else encoded


class ScrubbedStream:
    """Redacts streamed text, including secrets that are split across chunks."""

    def __init__(self, scrubber: Callable[[], Scrubber]) -> None:
        """`scrubber` is called for every chunk, because a secret may have been added since."""
        self._scrubber = scrubber
        self._held = ""
        # The end of the emitted text, which may be the first half of a secret added later.
        self._shown = ""

    def feed(self, text: str) -> str:
        """Return the text that is safe to emit; a possible start of a secret is buffered."""
        scrubber = self._scrubber()
        if not scrubber.has_secrets and not self._held:
            self._shown = (self._shown + text)[-_SHOWN_LONGEST:]
            return text
        shown = scrubber.redact_text(self._shown)
        cleaned = _behind(shown, scrubber.redact_text(shown + self._held + text))
        cut = scrubber.unfinished(cleaned)
        self._held = cleaned[cut:]
        self._shown = (shown + cleaned[:cut])[-_SHOWN_LONGEST:]
        return cleaned[:cut]

    def rest(self) -> str:
        """Return the buffered text at the end of the stream."""
        held, self._held, self._shown = self._held, "", ""
        return held


def _behind(shown: str, cleaned: str) -> str:
    """Return the text after the emitted part; a secret that starts in that part becomes a mark."""
    if cleaned.startswith(shown):
        return cleaned[len(shown) :]
    pairs = enumerate(zip(shown, cleaned, strict=False))
    return cleaned[next((at for at, (one, other) in pairs if one != other), len(cleaned)) :]


def _own_words() -> set[str]:
    """Return every word of the record format: keys, tags and enum values."""
    words: set[str] = set()
    waiting: list[Any] = [Struct, StrEnum]
    while waiting:
        # Read at call time, because modules imported later define more of them.
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
    """Return the value and, if it has several lines, each long line except PEM header lines.

    A line may appear alone, because tools number, indent and diff lines.
    """
    lines = [line.strip() for line in value.splitlines()]
    long = [line for line in lines if len(line) >= _LINE_SHORTEST and not line.startswith("-----")]
    return [value, *long] if len(lines) > 1 else [value]


def _managed(name: str, value: str) -> _Managed:
    written = (value, *_base64_cores(value.encode("utf-8", "surrogatepass")))
    return _Managed(
        mark=f"[secret:{_UNNAMEABLE.sub('_', name)}]",
        # Letters and digits are never escaped. A value without any has an empty anchor, which
        # always matches.
        anchors=tuple(max(_RUN.findall(form), key=len, default="") for form in written),
        pattern=re.compile("|".join("".join(map(_anyhow, form)) for form in written)),
        forms=tuple(dict.fromkeys(spelled for form in written for spelled in _spelled(form))),
    )


def _base64_cores(value: bytes) -> Iterator[str]:
    """Yield the base64 text of a value that is the same at any offset in a longer text."""
    for offset in range(3):
        encoded = base64.b64encode(bytes(offset) + value).decode()
        # The first characters also depend on the bytes before the value, the last on those after
        # it.
        yield encoded[-(-offset * 8 // 6) : (offset + len(value)) * 8 // 6]


def _spelled(form: str) -> Iterator[str]:
    """Yield a form as it is, in URL-safe base64, as a JSON string and percent-encoded."""
    yield form
    yield form.replace("+", "-").replace("/", "_")
    yield json.dumps(form, ensure_ascii=False)[1:-1]
    yield json.dumps(form)[1:-1]
    encoded = quote(form, safe="", errors="surrogatepass")
    yield encoded
    yield re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), encoded)


def _anyhow(character: str) -> str:
    """Return the pattern of a character in any encoding, including double escapes."""
    if character.isascii() and character.isalnum():
        return character
    # URL-safe base64 uses two other characters.
    plain = {"+": "[+-]", "/": "[/_]", " ": "[ +]"}.get(character, re.escape(character))
    octets = "".join(f"%{octet:02x}" for octet in character.encode("utf-8", "surrogatepass"))
    units = character.encode("utf-16-be", "surrogatepass").hex()
    escapes = "".join(rf"\\{{1,3}}u{units[at : at + 4]}" for at in range(0, len(units), 4))
    short = json.dumps(character)[1:-1] if character < " " else character
    return rf"(?:\\{{0,3}}{plain}|\\{{1,3}}{re.escape(short[-1])}|(?i:{octets}|{escapes}))"


def _find_prefix(form: str, text: str) -> int:
    """Return where the text ends with a prefix of the form; the text's length if it does not."""
    at = text.find(form[0], max(0, len(text) - len(form) + 1))
    while at >= 0:
        if form.startswith(text[at:]):
            return at
        at = text.find(form[0], at + 1)
    return len(text)
