"""Shapes: what may stand in a payload, as values that are judged by and described from."""

from typing import Final, TypeAlias

from msgspec import Struct

STRING_LONGEST: Final = 65_536
NAME_LONGEST: Final = 512


class Text(Struct, frozen=True, kw_only=True):
    """Words of so many characters; exact ones have no blanks around and no control characters."""

    shortest: int = 0
    longest: int = STRING_LONGEST
    is_exact: bool = False
    # Something has to be left after trimming.
    is_filled: bool = False


class Pattern(Struct, frozen=True):
    """A text that an expression matches as a whole."""

    expression: str


class Choice(Struct, frozen=True):
    """One of a few words."""

    words: tuple[str, ...]


class Number(Struct, frozen=True):
    """A finite number above zero."""


class Instant(Struct, frozen=True):
    """A date or a time of ISO 8601."""


class Mapping(Struct, frozen=True):
    """An object with whatever members."""


class Anything(Struct, frozen=True):
    """Any JSON."""


class Listing(Struct, frozen=True, kw_only=True):
    """A list of so many items, perhaps each only once."""

    item: "Kind"
    shortest: int = 0
    longest: int | None = None
    is_distinct: bool = False


class Member(Struct, frozen=True):
    """A named part of an object; null in an optional one clears it, or means it was not sent."""

    name: str
    kind: "Kind"
    description: str
    is_required: bool = False
    is_ignored_as_null: bool = False


class Shape(Struct, frozen=True, kw_only=True):
    """An object with known members, in the order they are told of; others may stand beside them.

    `key` names what the entity is known by, `ordered` pairs of times of which the second is not
    earlier, `apart` lists that must not hold the value of another member.
    """

    members: tuple[Member, ...]
    key: tuple[str, ...] = ()
    ordered: tuple[tuple[str, str], ...] = ()
    apart: tuple[tuple[str, str], ...] = ()

    def rank(self, name: str) -> int:
        """Return where a member stands; unknown ones stand behind all others."""
        for number, member in enumerate(self.members):
            if member.name == name:
                return number
        return len(self.members)

    def member(self, name: str) -> Member | None:
        """Return the member of a name; nothing if it is none of the shape's."""
        for member in self.members:
            if member.name == name:
                return member
        return None


Kind: TypeAlias = Text | Pattern | Choice | Number | Instant | Mapping | Anything | Listing | Shape

ANYTHING: Final = Anything()
INSTANT: Final = Instant()
NAME: Final = Text(shortest=1, longest=NAME_LONGEST, is_filled=True)
OBJECT: Final = Mapping()
POSITIVE: Final = Number()
TEXT: Final = Text()
