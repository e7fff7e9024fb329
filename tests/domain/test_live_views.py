"""Records of a stream that are left, and a view that begins with those of another one."""

import pytest

from holdfast.domain.ids import SessionKey
from holdfast.domain.recordings import WITHDRAWAL, Disposition, ForeignRecord, LiveView, LiveViews


def a_record(ordinal: int, *, kind: str = "item", raw: bytes = b"{}") -> ForeignRecord:
    return ForeignRecord(
        ordinal=ordinal, key=str(ordinal), kind=kind, raw=raw, disposition=Disposition.RAW
    )


def test_the_newest_record_is_the_last_that_is_left_of_this_view_and_then_of_its_base() -> None:
    base = LiveView()
    newest = [base.newest()]
    base.apply(a_record(1))
    view = LiveView(base)
    # What the base gets later is no part of the view.
    base.apply(a_record(2))
    newest += [base.newest(), view.newest()]
    view.apply(a_record(2, kind=WITHDRAWAL, raw=b"[1]"))
    newest.append(view.newest())
    view.apply(a_record(3))
    # One that is included already, or comes too early, changes nothing.
    view.apply(a_record(3))
    view.apply(a_record(5))
    newest.append(view.newest())

    assert [each and each.ordinal for each in newest] == [None, 2, 1, None, 3]
    assert ([each.ordinal for each in view], view.ahead(), view.last) == ([3], [], 3)


def test_a_view_that_lacks_a_record_has_to_be_read() -> None:
    views, key = LiveViews(), SessionKey(1)
    views.extend(key, "items", [a_record(1)]).version = (0, 7)
    complete = views.extend(key, "items", [a_record(2)]).version

    lacking = views.extend(key, "items", [a_record(4)]).version

    assert (complete, lacking) == ((0, 7), None)


def test_views_of_a_write_whose_end_is_not_known_have_to_be_read() -> None:
    views, keys = LiveViews(), [SessionKey(1), SessionKey(2)]
    for key in keys:
        views.extend(key, "items", [a_record(1)]).version = (0, 7)

    views.expire({keys[0]})

    found = [views.get(key, "items") for key in keys]
    assert [each and each.version for each in found] == [None, (0, 7)]


def test_views_that_were_not_used_for_the_longest_time_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.domain.recordings._VIEWS_MOST", 1_000)
    views = LiveViews()
    for number in (1, 2, 3, 1, 4):
        key = SessionKey(number)
        views.get(key, "items") or views.extend(key, "items", [a_record(1)])

    assert [views.get(SessionKey(each), "items") is not None for each in (1, 2, 3, 4)] == [
        True,
        False,
        True,
        True,
    ]
