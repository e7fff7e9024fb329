"""Untrusted regular expressions: matched in linear time within bounded memory (no ReDoS)."""

from typing import Any, Final

LONGEST: Final = 4_000
# Memory limit of a compiled pattern and of matching with it.
MEMORY_LARGEST: Final = 1 << 20


class PatternError(ValueError):
    """The pattern is not supported or too large; the message explains which."""


class Pattern:
    """A compiled pattern; bytes are read as UTF-8, and invalid bytes match nothing."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def is_in(self, content: str | bytes) -> bool:
        """Return whether a part of the content matches."""
        return self._compiled.search(_encode(content)) is not None

    def is_all_of(self, content: str | bytes) -> bool:
        """Return whether the whole content matches."""
        return self._compiled.fullmatch(_encode(content)) is not None


def compile_pattern(pattern: str) -> Pattern:
    """Return the compiled pattern, or raise `PatternError` with a message for its author."""
    import re2  # type: ignore[import-untyped]

    if len(pattern) > LONGEST:
        raise PatternError(f"a regular expression may have at most {LONGEST} characters")
    options = re2.Options()
    options.max_mem = MEMORY_LARGEST
    # re2 would otherwise log to stderr.
    options.log_errors = False
    options.never_capture = True
    # re2 caches compiled patterns together with the memory used for matching.
    re2.purge()
    try:
        return Pattern(re2.compile(pattern, options))
    except (re2.error, UnicodeEncodeError):
        raise PatternError(
            "this is not a linear-time regular expression; check its brackets and "
            "repetitions, and remove look-around and back-references"
        ) from None


def _encode(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode("utf-8", "replace")
