"""Entities as they were merged last, so that one more claim does not merge all of them anew."""

import threading
from collections import OrderedDict
from datetime import datetime
from typing import Final

from msgspec import Struct

from holdfast.domain.entities import Entity
from holdfast.domain.ids import EntityId
from holdfast.domain.resolutions import Fold
from holdfast.ports import Projection

BYTES_MOST: Final = 64 << 20
# How much more a merged entity takes in memory than its snapshot does as text, as measured.
SPREAD: Final = 12
_OF_ONE: Final = 4 << 10
# Lighter ones are carried on within a moment.
LIGHT: Final = 256 << 10

# Where the journal stood that was merged, too: its last row, its last change, what it inherited.
Stamp = tuple[bytes, datetime, int]
# With whose journal: none, or that of the session which the entity is.
Name = tuple[EntityId, bool]


class Remembered(Struct, frozen=True, kw_only=True):
    """Claims as they were merged; `newest` are hash and time of the one that was written last.

    What they come to is remembered by whoever has computed it, and `projection` as it was written.
    """

    fold: Fold
    newest: tuple[str, int] | None = None
    stamp: Stamp | None = None
    entity: Entity | None = None
    projection: Projection | None = None
    size: int

    @property
    def weight(self) -> int:
        """Return about how many bytes of memory it takes."""
        return self.size * SPREAD + _OF_ONE


class Folds:
    """Remembers what was merged newest, up to what it weighs in all; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Name, Remembered] = OrderedDict()
        self._bytes = 0

    def knows(self, name: Name) -> bool:
        """Tell whether only the newest claims have to be read."""
        return name in self._known

    def is_heavy(self, name: Name) -> bool:
        """Tell whether one more claim is surely not merged within a moment."""
        found = self.look(name)
        return found is not None and found.size >= LIGHT

    def look(self, name: Name) -> Remembered | None:
        """Return what is remembered, not to be carried on."""
        with self._lock:
            return self._known.get(name)

    def take(self, name: Name) -> Remembered | None:
        """Take out what is remembered: who carries it on has it alone."""
        with self._lock:
            found = self._known.pop(name, None)
            self._bytes -= found.weight if found else 0
            return found

    def put(self, name: Name, merged: Remembered) -> None:
        """Remember what was merged, in the place of what was."""
        with self._lock:
            before = self._known.pop(name, None)
            self._known[name] = merged
            self._bytes += merged.weight - (before.weight if before else 0)
            while self._bytes > BYTES_MOST and len(self._known) > 1:
                _, oldest = self._known.popitem(last=False)
                self._bytes -= oldest.weight

    def forget(self, name: Name) -> None:
        """Remember an entity no longer."""
        self.take(name)
