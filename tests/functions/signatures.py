"""Functions whose schemas, or the reasons why they have none, are in `schemas.json`.

Read twice: as it stands, and with postponed annotations. Types are at the top, because a
postponed annotation is looked up in the module.
"""

import dataclasses
import datetime
import decimal
import enum
import functools
import pathlib
import typing
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict, TypeVar

import annotated_types
import msgspec
import pydantic

from holdfast import ToolCallContext

T = TypeVar("T")
Order = NewType("Order", str)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


@dataclasses.dataclass
class Circle:
    radius: float


class Box(msgspec.Struct):
    """A box."""

    title: str
    inner: "Box | None" = None


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Movie(TypedDict):
    title: str
    year: typing.NotRequired[int]


class Pair(NamedTuple):
    left: int
    right: str = ""


class Wrapped(msgspec.Struct, typing.Generic[T]):
    value: T


class Node(pydantic.BaseModel):
    value: int
    children: list["Node"] = []


class Item(pydantic.BaseModel):
    name: str = pydantic.Field(description="Its name.")
    price: float


class Shelf(pydantic.BaseModel):
    items: list[Item]


@dataclasses.dataclass
class Marked:
    age: Annotated[int, pydantic.Field(ge=0)]


@dataclasses.dataclass
class Filed:
    path: pathlib.Path


class Stock(pydantic.BaseModel):
    spare: Item


Other = msgspec.defstruct("Node", [("value", int)])


def scalars(a: int, b: float, c: str, d: bool) -> None: ...
def defaults(a: int = 3, b: str = "x", c: bool = True, d: float | None = None) -> None: ...
def nothing() -> None: ...
def anything(a: Any) -> None: ...
def null(a: None) -> None: ...
def literal(a: Literal["one", "two", 3]) -> None: ...
def enums(a: Colour, b: Size = Size.SMALL) -> None: ...
def optional(a: int | None, b: str | None = None) -> None: ...
def union(a: int | str | list[int]) -> None: ...
def lists(a: list[int], b: list[list[str]], c: list[Any]) -> None: ...
def bare(a: list[Any], b: dict[str, Any], c: tuple[Any, ...]) -> None: ...
def sets(a: set[str], b: frozenset[int]) -> None: ...
def tuples(a: tuple[int, str], b: tuple[float, ...]) -> None: ...
def dicts(a: dict[str, int], b: dict[int, str], c: Mapping[str, list[int]]) -> None: ...
def sequences(a: Sequence[int]) -> None: ...
def new_type(a: Order) -> None: ...
def times(
    a: datetime.datetime, b: datetime.date, c: datetime.time, d: datetime.timedelta
) -> None: ...
def numbers(a: decimal.Decimal, b: uuid.UUID, c: bytes) -> None: ...
def struct(a: Box) -> None: ...
def tagged(a: Cat | Dog) -> None: ...
def data_class(a: Point, b: list[Point] | None = None) -> None: ...
def typed_dict(a: Movie) -> None: ...
def named_tuple(a: Pair) -> None: ...
def generic(a: Wrapped[int]) -> None: ...
def model(a: Node) -> None: ...
def models(a: list[Shelf], b: dict[str, Item], c: Item | None = None) -> None: ...
def same_name(a: Node, b: Other) -> None: ...
def same_definition(a: Shelf, b: Stock) -> None: ...
def text(a: Annotated[int, "How many."]) -> None: ...
def text_first(a: Annotated[int, msgspec.Meta(description="Second.", ge=1), "First."]) -> None: ...
def meta(a: Annotated[str, msgspec.Meta(min_length=1, pattern="^a")] = "a") -> None: ...
def field(a: Annotated[int, pydantic.Field(ge=1, le=9, description="One digit.")]) -> None: ...
def field_pattern(a: Annotated[str, pydantic.Field(pattern="^x", max_length=3)]) -> None: ...
def bounds(
    a: Annotated[int, annotated_types.Interval(ge=1, lt=9)],
    b: Annotated[list[int], annotated_types.Len(1, 5)],
) -> None: ...
def inner_text(a: list[Annotated[int, "A number."]]) -> None: ...
def context(a: int, call: ToolCallContext) -> None: ...
def only_context(*, context: ToolCallContext) -> None: ...
def keyword_only(*, a: int, b: int = 2) -> None: ...
def positional_only(a: int, b: int = 2, /) -> None: ...
def mutable_default(a: list[int] = [1, 2]) -> None: ...  # noqa: B006 — what is tested
def unsayable_default(a: Any = object()) -> None: ...  # noqa: B008 — what is tested


def google(a: int, b: str = "") -> None:
    """Do it.

    Args:
        a: The first,
            on two lines.
        b (str): The second.

    Returns:
        Nothing.
    """


def numpy(a: int, b: int, c: str = "") -> None:
    """Do it.

    Parameters
    ----------
    a, b : int
        Two numbers.
    c : str, optional
        A text.

    Returns
    -------
    None
    """


def sphinx(a: int, b: str = "") -> None:
    """Do it.

    :param int a: The first,
        on two lines.
    :param b: The second.
    :type b: str
    :returns: nothing
    """


def bound(a: int, secret: str) -> None: ...


partial = functools.partial(bound, secret="s3cret")


class Counter:
    def add(self, a: int) -> None: ...

    def __call__(self, b: int) -> None:
        """Count."""


method = Counter().add
called = Counter()


def no_annotation(a) -> None: ...  # type: ignore[no-untyped-def]
def star(*values: int) -> None: ...
def stars(**values: int) -> None: ...
def type_variable(a: T) -> T: ...  # type: ignore[empty-body]
def anything_at_all(a: object) -> None: ...
def function(a: Callable[[], int]) -> None: ...
def complex_number(a: complex) -> None: ...
def path(a: pathlib.Path) -> None: ...
def iterator(a: Iterator[int]) -> None: ...
def unresolved(a: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def untagged(a: Point | Circle) -> None: ...
def model_union(a: Item | int) -> None: ...
def odd_key(a: dict[tuple[int, int], str]) -> None: ...
def predicate(a: Annotated[int, annotated_types.Predicate(bool)]) -> None: ...
def alias(a: Annotated[int, pydantic.Field(alias="b")]) -> None: ...
def field_default(a: int = pydantic.Field(ge=1)) -> None: ...
def lost_mark(a: Marked) -> None: ...
def inner_path(a: list[Filed]) -> None: ...
def two_contexts(a: ToolCallContext, b: ToolCallContext) -> None: ...


def mistyped(order: str) -> None:
    """Do it.

    Args:
        oder: The order.
    """


async def asynchronous(a: int) -> None: ...


def generator(a: int) -> Iterator[int]:
    yield a


unbound = Counter.add
a_class = Counter

NAMES = (
    *("scalars", "defaults", "nothing", "anything", "null", "literal", "enums", "optional"),
    *("union", "lists", "bare", "sets", "tuples", "dicts", "sequences", "new_type", "times"),
    *("numbers", "struct", "tagged", "data_class", "typed_dict", "named_tuple", "generic"),
    *(
        "model",
        "models",
        "same_name",
        "same_definition",
        "text",
        "text_first",
        "meta",
        "field",
        "field_pattern",
    ),
    *("bounds", "inner_text", "context", "only_context", "keyword_only", "positional_only"),
    *("mutable_default", "unsayable_default", "google", "numpy", "sphinx", "partial", "method"),
    *("called", "asynchronous", "no_annotation", "star", "stars", "type_variable"),
    *("anything_at_all", "function", "complex_number", "path", "iterator", "unresolved"),
    *("untagged", "model_union", "odd_key", "predicate", "alias", "field_default", "lost_mark"),
    *("inner_path", "two_contexts", "mistyped", "generator", "unbound", "a_class"),
)
