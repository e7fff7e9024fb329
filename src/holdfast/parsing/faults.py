"""What is wrong with a file: places and the rules that they break, all at once, never a value."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec import Struct

_PLACE: Final = re.compile(r"(?P<problem>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_FIELD: Final = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)


class Fault(Struct, frozen=True):
    """A place in a file, and the rule that it breaks."""

    path: str
    problem: str


class FormError(ValueError):
    """The file is not what it should be; it says everything that is wrong."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__(", ".join(fault.path for fault in faults))
        self.faults = faults


def repeated(path: str, names: Iterable[str]) -> Iterator[Fault]:
    """Yield the places of a list at which a name stands again."""
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            yield Fault(f"{path}[{number}]", "it stands there twice")
        seen.add(name)


def fault_of(path: str, error: msgspec.ValidationError) -> Fault:
    """Return the fault that the library tells, without the value that it may quote."""
    found = _PLACE.fullmatch(str(error))
    problem, inner = (found["problem"], found["path"] or "") if found else ("it does not fit", "")
    if named := _FIELD.fullmatch(problem):
        told = "it is missing" if named[1] == "missing required" else "there is no such key"
        return Fault(f"{path}{inner}.{named[2]}", told)
    if problem.startswith("Invalid"):
        problem = "it is none of the words that may stand here"
    return Fault(f"{path}{inner}", problem[:1].lower() + problem[1:])
