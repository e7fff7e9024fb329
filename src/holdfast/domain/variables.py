"""Variables of a session: put into the agent's prompt once, when the session opens.

Messages, arguments and results are never looked at, and a secret has no place in any of this.
"""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from holdfast.domain.agents import SYSTEM_PROMPT_LONGEST
from holdfast.domain.credentials import is_credential
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.scrubbing import Scrubber

_VARIABLE: Final = re.compile(r"\{\{ctx\.([A-Za-z0-9_-]{1,64})\}\}")
_SECRET_REFERENCE: Final = re.compile(r"\{\{\s*secrets\.")
_OPENER: Final = re.compile(r"\{(?=\{)")
# Neither a prompt nor a variable may hold this character, so it can mark where a value ends.
_EDGE: Final = "\x00"
# Two braces that only meet because of what was put in.
_SEAM: Final = re.compile(r"\{\x00+(?=\{)")


class Rendered(Struct, frozen=True, kw_only=True):
    """A text with its variables put in, and the names that no variable has, each once."""

    text: str
    unknown: tuple[str, ...] = ()


def render(template: str, variables: Mapping[str, str]) -> Rendered:
    """Return the template with its variables put in, in one pass; unknown ones stay as written."""
    names = _VARIABLE.findall(template)
    # Before anything is put in: a short template can ask for one long value many times.
    if len(template) + sum(len(variables.get(name, "")) for name in names) > SYSTEM_PROMPT_LONGEST:
        raise Invalid(
            Code.INVALID_TEXT,
            f"With its variables the prompt has more than {SYSTEM_PROMPT_LONGEST} characters.",
            {"field": "system_prompt"},
        )
    marked = _VARIABLE.sub(lambda found: _put_in(found, variables), template)
    text = _SEAM.sub("{ ", marked).replace(_EDGE, "")
    return Rendered(text=text, unknown=tuple(dict.fromkeys(n for n in names if n not in variables)))


def neutralise(text: str) -> str:
    """Return the text without openers: one space behind each brace that another one follows."""
    return _OPENER.sub("{ ", text)


def has_secret_reference(text: str) -> bool:
    """Tell whether a text asks for a secret to be put into it."""
    return _SECRET_REFERENCE.search(text) is not None


def refuse_secrets(variables: Mapping[str, str], scrubber: Scrubber) -> None:
    """Refuse variables that carry a secret, naming them and never their values."""
    found = sorted(
        name
        for name, value in variables.items()
        if scrubber.holds(value) or is_credential(value, name)
    )
    if found:
        raise Invalid(
            Code.SECRET_IN_VARIABLES,
            f"Variables are kept as plain text; take the secret out of: {', '.join(found)}.",
            {"variables": found},
        )


def _put_in(found: re.Match[str], variables: Mapping[str, str]) -> str:
    value = variables.get(found[1])
    return found[0] if value is None else f"{_EDGE}{neutralise(value)}{_EDGE}"
