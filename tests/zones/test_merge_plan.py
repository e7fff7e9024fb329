"""Where two zones become one, a table decides whose files stay, and about a zone as a whole."""

from holdfast.zones.merge import CopyAction, MergePlan, MergeSide, action_of, plan_merge
from holdfast.zones.model import OUTPUT_FILE, SNAPSHOT_FILE, ZoneFile
from tests.marks import demands, each_case


def a_file(name: str = OUTPUT_FILE, *, size: int = 3, at: int = 10) -> ZoneFile:
    return ZoneFile(
        zone="z", name=name, size=size, created_ms=1, modified_ms=at, generation="0" * 16
    )


@demands("S4-131")
@each_case(
    ("there", "is_same", "action"),
    [
        (None, False, CopyAction.COPY),
        (a_file(size=0), False, CopyAction.COPY),
        (a_file(at=99), True, CopyAction.PRESERVE),
        (a_file(at=9), False, CopyAction.OVERWRITE),
        (a_file(at=11), False, CopyAction.PRESERVE),
        (a_file(at=10), False, CopyAction.CONFLICT),
    ],
)
def test_each_row_of_the_table(there: ZoneFile | None, is_same: bool, action: CopyAction) -> None:
    assert action_of(a_file(), there, is_same=is_same) is action


def decided(
    ours: tuple[int | None, int | None], theirs: tuple[int | None, int | None]
) -> MergePlan:
    """Decide about an output and a snapshot of the given times, none of them the same."""
    names = (OUTPUT_FILE, SNAPSHOT_FILE)
    sources = [a_file(name, at=at) for name, at in zip(names, ours, strict=True) if at]
    there = {name: a_file(name, at=at) for name, at in zip(names, theirs, strict=True) if at}
    return plan_merge(sources, there, frozenset())


COPY, KEEP = CopyAction.COPY, CopyAction.PRESERVE
TAKE, TIE = CopyAction.OVERWRITE, CopyAction.CONFLICT


@each_case(
    ("ours", "theirs", "actions", "loser", "conflicts"),
    [
        ((5, 5), (None, None), (COPY, COPY), None, 0),
        ((5, 5), (4, 4), (TAKE, TAKE), MergeSide.DESTINATION, 0),
        ((5, 5), (6, 6), (KEEP, KEEP), MergeSide.SOURCE, 0),
        ((5, 5), (5, 5), (TIE, TIE), MergeSide.SOURCE, 2),
        # The newer log decides about both.
        ((5, 5), (4, 6), (TAKE, TAKE), MergeSide.DESTINATION, 0),
        ((5, 5), (6, 4), (KEEP, KEEP), MergeSide.SOURCE, 0),
        # The logs are of one time: the newer snapshot decides.
        ((5, 5), (5, 4), (TAKE, TAKE), MergeSide.DESTINATION, 1),
        # One side has a file that the other lacks.
        ((5, 5), (4, None), (TAKE, COPY), MergeSide.DESTINATION, 0),
    ],
)
def test_a_snapshot_and_its_log_have_one_winner(
    ours: tuple[int, int],
    theirs: tuple[int | None, int | None],
    actions: tuple[CopyAction, CopyAction],
    loser: MergeSide | None,
    conflicts: int,
) -> None:
    expected = dict(zip((OUTPUT_FILE, SNAPSHOT_FILE), actions, strict=True))

    assert decided(ours, theirs) == MergePlan(actions=expected, loser=loser, conflicts=conflicts)


def test_other_files_that_disagree_leave_the_destination() -> None:
    sources = [a_file("a", at=5), a_file("b", at=5)]
    there = {"a": a_file("a", at=4), "b": a_file("b", at=6)}

    plan = plan_merge(sources, there, frozenset())

    assert plan == MergePlan(actions={"a": KEEP, "b": KEEP}, loser=MergeSide.SOURCE, conflicts=0)


def test_files_with_the_same_bytes_have_no_loser() -> None:
    plan = plan_merge([a_file()], {OUTPUT_FILE: a_file(at=99)}, frozenset({OUTPUT_FILE}))

    assert plan == MergePlan(actions={OUTPUT_FILE: KEEP}, loser=None, conflicts=0)
