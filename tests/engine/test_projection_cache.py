"""Kept projections: the same request as a projection made anew, however the history grows."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.domain.ids import CallId
from holdfast.domain.messages import CHAIN_START, Media, Message, NoticeCode, Role, ToolCall
from holdfast.engine.projection import KEPT_BYTES, KEPT_MOST, ProjectionCache, project
from holdfast.ports.llm import LlmReasoning
from tests.builders import hash_of
from tests.engine.builders import a_row, assistant, call, notice, result, summary, user


def chained(rows: list[Message]) -> list[Message]:
    """Give rows the hashes that the journal would give them."""
    sealed: list[Message] = []
    last = CHAIN_START
    for row in rows:
        last = hash_of(row, last)
        sealed.append(replace(row, chain=last))
    return sealed


def brought(sequence: int, kind: str, turn: int) -> Message:
    """A row from elsewhere; a result may come turns after its call, or after none."""
    if kind == "said":
        return assistant(sequence, "brought", turn=0)
    if kind == "call":
        return call(sequence, f"brought{turn // 2}", turn=0)
    return result(sequence, f"brought{turn // 2}", "x", turn=0)


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[list[Message], int]]:
    """A session as it grows: the rows and the turn at each request, queued messages included."""
    rows: list[Message] = []
    requests: list[tuple[list[Message], int]] = []
    for turn in range(1, draw(st.integers(1, 6)) + 1):
        if draw(st.booleans()):
            rows.append(notice(len(rows) + 1, NoticeCode.CALL_SETTLED, turn=0))
        for kind in draw(st.lists(st.sampled_from(["said", "call", "result"]), max_size=3)):
            rows.append(brought(len(rows) + 1, kind, turn))
        rows.append(user(len(rows) + 1, f"question {turn}", turn))
        requests.append((list(rows), turn))
        if draw(st.integers(0, 3)) == 0:
            rows.append(notice(len(rows) + 1, NoticeCode.CALL_SETTLED, turn=0))
        if draw(st.booleans()):
            rows.append(call(len(rows) + 1, f"call{turn}", turn))
            rows.append(result(len(rows) + 1, f"call{turn}", "x", turn=turn))
            requests.append((list(rows), turn))
        if draw(st.booleans()):
            rows.append(user(len(rows) + 1, f"queued {turn}", turn + 1))
        kind = draw(st.sampled_from(["answer", "notice", "nothing"]))
        if kind == "answer":
            rows.append(assistant(len(rows) + 1, f"answer {turn}", turn))
        elif kind == "notice":
            rows.append(notice(len(rows) + 1, NoticeCode.ABORTED, turn))
        if draw(st.integers(0, 4)) == 0:
            rows.append(summary(len(rows) + 1, "s", draw(st.integers(0, len(rows)))))
    return requests


@given(lives(), st.none() | st.integers(1, 4))
def test_a_kept_projection_is_the_one_made_anew(
    life: list[tuple[list[Message], int]], window: int | None
) -> None:
    kept = ProjectionCache()

    for rows, turn in life:
        history = chained(rows)
        messages, has_media = kept.project(history, turn=turn, window=window)
        assert messages == project(history, turn=turn, window=window)
        assert has_media == any(message.media for message in messages)


@given(lives())
def test_rows_that_are_not_on_disk_yet_are_projected_all_the_same(
    life: list[tuple[list[Message], int]],
) -> None:
    kept = ProjectionCache()

    for rows, turn in life:
        # As in a running turn: what it has written itself has no hash here.
        known = next(place for place, row in enumerate(rows) if row.turn == turn) + 1
        history = [*chained(rows[:known]), *(replace(row, chain=b"") for row in rows[known:])]
        assert kept.project(history, turn=turn).messages == project(history, turn=turn)


def test_a_kept_projection_knows_the_thoughts_of_its_turn_only() -> None:
    kept = ProjectionCache()
    thought = LlmReasoning(text="hm", signature="s", provider="p")
    history = chained([user(1, "a"), assistant(2, "b"), user(3, "c", 2), assistant(4, "d", 2)])
    thoughts = {history[3].id: (thought,)}

    for _ in range(2):
        request = kept.project(history, turn=2, thoughts=thoughts).messages
        assert [message.reasoning for message in request] == [(), (), (), (thought,), ()]
    later = chained([*history, user(5, "e", 3)])
    assert "hm" not in repr(kept.project(later, turn=3))


def test_only_so_many_projections_are_kept() -> None:
    kept = ProjectionCache()

    for number in range(KEPT_MOST + 10):
        history = chained([assistant(1, f"{number}", 1), user(2, "go on", 2)])
        assert kept.project(history, turn=2).messages == project(history, turn=2)


def test_kept_projections_take_no_more_than_so_much_memory() -> None:
    kept = ProjectionCache()
    long = "x" * (KEPT_BYTES // 8)
    arguments = {"content": long}
    written = ToolCall(id=CallId("c"), name="write_file", arguments=arguments)
    huge = [assistant(1, long * 9, 1)]

    for first in ([assistant(1, long, 1)], [a_row(1, Role.TOOL_CALL, written)], huge):
        for number in range(20):
            history = chained([*first, user(2, f"{number}", 1), user(3, "go on", 2)])
            assert kept.project(history, turn=2).messages == project(history, turn=2)

            assert kept._bytes == sum(each.weight for each in kept._kept.values()) <= KEPT_BYTES
    assert len(kept._kept) == 7


def test_a_kept_projection_knows_whether_it_has_media() -> None:
    kept = ProjectionCache()
    picture = Media(mime_type="image/png", ref="media://sha256-0")
    refused = notice(5, NoticeCode.MEDIA_REFUSED, 2)
    rows = [user(1, "a"), assistant(2, "b"), a_row(3, Role.USER, picture, turn=2)]
    rows += [assistant(4, "c", 2), refused, user(6, "d", 3), assistant(7, "e", 3), user(8, "f", 4)]

    # Each turn as its request is made: the third one follows the refusal.
    seen = [
        kept.project(chained(rows[:end]), turn=turn) for turn, end in enumerate((1, 3, 6, 8), 1)
    ]

    assert [each.has_media for each in seen] == [False, True, False, False]
    assert [any(each.media for each in one.messages) for one in seen] == [False, True, False, False]
