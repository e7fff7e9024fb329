"""A session is found by the beginning of its id, among its owner's own."""

import pytest

from holdfast import Holdfast
from holdfast.domain.errors import Invalid
from holdfast.domain.ids import Owner
from tests.marks import each_case

pytestmark = pytest.mark.anyio

FIRST = "0192a000-1111-7aaa-8000-000000000001"
SECOND = "0192a000-1111-7aaa-8000-0000000000ff"
THIRD = "0192a000-2222-7aaa-8000-000000000001"


@pytest.fixture
async def house(quiet: Holdfast) -> Holdfast:
    """Have three sessions, two of which begin alike."""
    for session_id in (THIRD, SECOND, FIRST):
        await quiet.open(id=session_id)
    return quiet


@each_case(
    ("beginning", "found"),
    [
        ("0192a000", (FIRST, SECOND, THIRD)),
        ("0192a000-1", (FIRST, SECOND)),
        (" 0192A000-1111-7aaa-8000-0000000000F ", (SECOND,)),
        (FIRST, (FIRST,)),
        (f"{FIRST}0", ()),
        ("0192b", ()),
        ("192a000", ()),
        ("", ()),
        ("%", ()),
        ("_", ()),
        ("\ud800", ()),
        ("\0", ()),
        ("g", ()),
    ],
)
async def test_it_is_the_beginning_that_counts(
    house: Holdfast, beginning: str, found: tuple[str, ...]
) -> None:
    assert await house.sessions.find(house.owner, beginning) == found


async def test_so_many_are_told_as_are_wanted(house: Holdfast) -> None:
    assert await house.sessions.find(house.owner, "0192", limit=2) == (FIRST, SECOND)
    with pytest.raises(Invalid):
        await house.sessions.find(house.owner, "0192", limit=0)


async def test_only_ones_own_are_found(house: Holdfast) -> None:
    assert await house.sessions.find(Owner("stranger"), "0192a000") == ()
