"""Records of a stream that are left, and a view that begins with those of another one."""

from holdfast.domain.recordings import WITHDRAWAL, Disposition, ForeignRecord, LiveView


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
