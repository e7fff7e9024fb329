"""Repeats: what a request made whose sender chose the id, and may therefore send it again."""

from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")


class Made(Struct, Generic[T], frozen=True, kw_only=True):
    """A thing, and whether this request made it or an equal one before."""

    thing: T
    is_new: bool
