"""What a credential looks like: shapes that news, errors and logs mask, and files may not hold.

A shape is a guess. Values that we hold ourselves are known exactly; `scrubbing.py` finds those.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

import msgspec
from msgspec import Struct

MASK: Final = "[masked]"


class Shape(Struct, frozen=True, kw_only=True):
    """A credential as it begins at one of its marks; its group `secret` is what must not be seen.

    `marks` are in lower case. A loose shape is masked, and not refused.
    """

    marks: tuple[str, ...]
    pattern: str
    is_loose: bool = False


# Without brackets, dollars and stars, which begin a placeholder such as `${TOKEN}`.
_VALUE: Final = r"[^\s\"'`,;&<>(){}\[\]|\\$*]"
_QUOTE: Final = r"(?:\\{0,3}[\"'])?"
_IS: Final = rf"{_QUOTE}\s{{0,3}}(?:=|:(?!//))\s{{0,3}}{_QUOTE}"
# With a digit, and no number.
_CRYPTIC: Final = (
    rf"(?P<secret>(?={_VALUE}{{0,64}}?[0-9])(?![0-9.:/-]++(?!{_VALUE})){_VALUE}{{8,4096}}+)"
)
_IN_URL: Final = r"[^\s/@:\"'?#<>\\]"
_IN_QUERY: Final = r"[^&\s\"'<>#\\]"
# Where a word may begin: also behind an escaped line break, and behind a colour.
_START: Final = r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt])|(?<=[0-9]m))"
_SECRET_KEY: Final = "|".join(
    f"(?<={kind}key)|(?<={kind}[_-]key)"
    for kind in ("api", "access", "private", "account", "signing", "master", "auth", "secret")
)
# "tokens" only counts them.
_NAME: Final = (
    rf"(?:key(?:{_SECRET_KEY})|secret(?!ar)|token(?!s|i[sz])|passw(?:or)?d|passphrase|pwd"
    r"|credential|authorization)"
)
_NAME_MARKS: Final = (
    *("key", "secret", "token", "passw", "passphrase", "pwd", "credential", "authorization"),
)

# How keys of the large providers begin, and the rest of them.
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
    # Our own tokens, which always have a capital, and those of a provider.
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

# Bounded everywhere, so that no text of a stranger's takes more than linear time.
_PATTERNS: Final[Mapping[tuple[str, ...], str]] = {
    # A private key, up to the next dashes.
    ("-----begin",): r"-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:\\{1,4}[nr]|\s){0,8}(?=[A-Za-z0-9+/]{16}|[A-Z][A-Za-z-]{2,20}: )"
    r"(?P<secret>[^-]*+(?:-(?!----)[^-]*+)*+)",
    ("authorization",): rf"(?i:authorization){_IS}(?i:(?:bearer|basic|token|digest)\s{{1,3}})?"
    rf"(?P<secret>(?!(?i:bearer|basic)\b){_VALUE}{{8,4096}}+)",
    # Both words are English, too; what follows them must not be.
    ("bearer", "basic"): r"(?<![A-Za-z0-9])(?i:bearer|basic)\s{1,3}(?P<secret>"
    r"(?=[A-Za-z+/._~-]{0,64}[0-9]|[A-Za-z+/._~-]{24})[A-Za-z0-9+/._~=-]{8,4096}+)",
    # name=value and its relatives.
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
    *(Shape(marks=marks, pattern=pattern) for marks, pattern in _PATTERNS.items()),
    *(
        Shape(marks=(mark,), pattern=rf"{_START}(?P<secret>{rest})")
        for mark, rest in _PREFIXES.items()
    ),
    Shape(marks=("passw", "passphrase", "pwd", "secret", "token"), pattern=_LOOSE, is_loose=True),
)
_EVERY_MARK: Final = sorted({mark for shape in SHAPES for mark in shape.marks})
# Enough to tell that there are none: a mark that holds another need not be looked for.
_MARKS: Final = tuple(
    mark for mark in _EVERY_MARK if not any(other in mark for other in _EVERY_MARK if other != mark)
)
_SECRET_NAME: Final = rf"(?i:{_NAME})"
# A text of JSON, and the colon behind it where it is the name of a value.
JSON_TEXT: Final = re.compile(rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")([ \t\r\n]*:[ \t\r\n]*)?', re.DOTALL)
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(str)


def is_secret_name(name: str) -> bool:
    """Tell whether what is called so is a secret, by its name alone."""
    return _compiled(_SECRET_NAME).search(name) is not None


def is_credential(text: str, name: str = "") -> bool:
    """Tell whether a text holds a credential; the name of a value may say that it is one."""
    told = f"{name}={text}" if is_secret_name(name) else text
    strict = (shape for shape in SHAPES if not shape.is_loose)
    return next(iter(_spans(bytewise(told), strict)), None) is not None


def mask_text(text: str) -> str:
    """Return the text with its credentials masked; the same object where there are none."""
    view = bytewise(text)
    spans = sorted(_spans(view, SHAPES))
    if not spans:
        return text
    pieces, done = [], 0
    for begin, end in spans:
        # Two shapes may fit one credential.
        if begin >= done:
            pieces += [view[done:begin], MASK]
        done = max(done, end)
    return "".join([*pieces, view[done:]]).encode("latin-1").decode("utf-8", "surrogatepass")


def mask_json(encoded: bytes) -> bytes:
    """Return JSON with its credentials masked, valid as before; the same object if it has none."""
    lowered = encoded.lower().decode("latin-1")
    present = [mark for mark in _MARKS if mark in lowered]
    if not present:
        return encoded
    marked = sorted(at for mark in present for at in _places(mark, lowered))
    pieces: list[bytes] = []
    done, named_until = 0, -1
    # Text by text: whatever becomes of one, the JSON around it stays as it is.
    for found in JSON_TEXT.finditer(encoded):
        is_named = found.start() == named_until
        nearest = bisect_left(marked, found.start())
        if not is_named and (nearest == len(marked) or marked[nearest] >= found.end(1)):
            continue
        text = _decoder.decode(found[1])
        # Whole, because the name before the colon says what it is.
        masked = MASK if is_named and not found[2] and len(text) >= 4 else mask_text(text)
        named_until = found.end() if found[2] and is_secret_name(text) else -1
        if masked != text:
            pieces += [encoded[done : found.start()], _encoder.encode(masked)]
            done = found.end(1)
    return b"".join([*pieces, encoded[done:]]) if pieces else encoded


def _spans(view: str, shapes: Iterable[Shape]) -> Iterable[tuple[int, int]]:
    """Yield where secrets stand, shape by shape."""
    lowered = view.encode("latin-1").lower().decode("latin-1")
    for shape in shapes:
        for mark in shape.marks:
            at = lowered.find(mark)
            while at >= 0:
                found = _compiled(shape.pattern).match(view, at)
                if found is not None:
                    yield found.span("secret")
                at = lowered.find(mark, found.end() if found else at + 1)


# When it is needed first: all of them at once would cost every start twenty milliseconds.
@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def _places(mark: str, text: str) -> Iterable[int]:
    at = text.find(mark)
    while at >= 0:
        yield at
        at = text.find(mark, at + 1)


def bytewise(text: str) -> str:
    """Return the text's UTF-8, a character for each byte.

    Lower case has as many bytes then, and Python finds text in text ten times as fast as bytes.
    """
    return text.encode("utf-8", "surrogatepass").decode("latin-1")
