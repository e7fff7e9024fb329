"""What a figure is, how figures are registered, and the folder each one works in."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from msgspec import Struct


class Figure(Struct, frozen=True, kw_only=True):
    """A measured value; `ratio` is against the yardstick, `goal` says what we want it to be."""

    value: float
    unit: str
    yardstick: float | None = None
    ratio: float | None = None
    goal: str | None = None
    met: bool | None = None
    note: str | None = None


Measure = Callable[[Path], dict[str, Figure]]

MEASURES: dict[tuple[str, ...], Measure] = {}


def measures(*names: str) -> Callable[[Measure], Measure]:
    """Register a function that measures the named figures in an empty folder on a real disk."""

    def register(measure: Measure) -> Measure:
        MEASURES[names] = measure
        return measure

    return register


def at_least(value: float, unit: str, yardstick: float, goal: float) -> Figure:
    """Return a figure whose ratio should reach the goal."""
    ratio = value / yardstick
    return Figure(
        value=value,
        unit=unit,
        yardstick=yardstick,
        ratio=ratio,
        goal=f"≥ {goal:g}×",
        met=ratio >= goal,
    )


def at_most(value: float, unit: str, yardstick: float, goal: float) -> Figure:
    """Return a figure whose ratio should stay below the goal."""
    ratio = value / yardstick
    return Figure(
        value=value,
        unit=unit,
        yardstick=yardstick,
        ratio=ratio,
        goal=f"≤ {goal:g}×",
        met=ratio <= goal,
    )


def at_rate(value: float, unit: str, goal: float, note: str) -> Figure:
    """Return a figure that should reach a rate, whatever bare SQLite does."""
    return Figure(
        value=value,
        unit=unit,
        yardstick=goal,
        ratio=value / goal,
        goal=f"≥ {goal:,g}/s",
        met=value >= goal,
        note=note,
    )


def below(value: float, unit: str, goal: float) -> Figure:
    """Return a figure without a yardstick that should stay below the goal."""
    return Figure(value=value, unit=unit, goal=f"≤ {goal:g} {unit}", met=value <= goal)


def middle(samples: list[float]) -> float:
    """Return the median; one slow run of a shared machine does not count."""
    return median(samples)


@contextmanager
def workplace() -> Iterator[Path]:
    """Give a folder beside the checkout: a memory file system would flatter every disk figure."""
    with TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as folder:
        yield Path(folder)
