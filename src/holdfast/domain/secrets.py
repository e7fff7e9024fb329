"""A value that must not be seen: a key on its way to the one place that sends it.

Where secrets come from and where they are kept is not decided here.
"""

from typing import Final, NoReturn

_HIDDEN: Final = "[secret]"


class Secret:
    """A text that only `reveal` gives away.

    Printing, formatting and logging show a mark instead; encoding and pickling are refused, and a
    copy is the secret itself.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the text; for the transport that sends it, and for nobody else."""
        return self._value

    def __repr__(self) -> str:
        return _HIDDEN

    def __format__(self, _: str) -> str:
        # Also with a format that asks for something: `{key:>40}` must not be a way around.
        return _HIDDEN

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, _: object) -> "Secret":
        return self

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise TypeError("A secret is not written down.")
