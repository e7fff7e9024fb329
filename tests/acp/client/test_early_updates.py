"""Updates that come before their conversation is known."""

from holdfast.acp.client.agent_session import (
    EARLY_BYTES_MOST,
    EARLY_SECONDS,
    EARLY_UPDATES_MOST,
    EarlyUpdates,
)


def said(session: str, number: int = 0) -> dict[str, object]:
    return {"sessionId": session, "number": number}


def test_what_was_said_early_is_claimed_once_in_its_order() -> None:
    early = EarlyUpdates()
    for number in range(4):
        early.add(said("ab"[number % 2], number), size=10, now=0.0)
    early.add("odd", size=10, now=0.0)

    assert early.claim("a", now=1.0) == [said("a", 0), said("a", 2)]
    assert early.claim("a", now=1.0) == []
    assert early.claim("b", now=1.0) == [said("b", 1), said("b", 3)]


def test_only_so_many_are_kept_and_the_oldest_give_way() -> None:
    early = EarlyUpdates()
    for number in range(EARLY_UPDATES_MOST + 2):
        early.add(said("a", number), size=1, now=0.0)

    assert early.dropped == 2
    assert early.claim("a", now=0.0) == [
        said("a", each) for each in range(2, EARLY_UPDATES_MOST + 2)
    ]


def test_only_so_much_is_kept() -> None:
    early = EarlyUpdates()
    for number in range(3):
        early.add(said("a", number), size=EARLY_BYTES_MOST // 2, now=0.0)
    early.add(said("a", 3), size=EARLY_BYTES_MOST + 1, now=0.0)

    assert early.claim("a", now=0.0) == []
    assert early.dropped == 4


def test_room_is_free_again_after_a_claim() -> None:
    early = EarlyUpdates()
    early.add(said("a"), size=EARLY_BYTES_MOST, now=0.0)
    early.claim("a", now=0.0)
    early.add(said("a", 1), size=EARLY_BYTES_MOST, now=0.0)

    assert (early.claim("a", now=0.0), early.dropped) == ([said("a", 1)], 0)


def test_half_a_minute_after_the_first_name_nothing_is_kept_any_more() -> None:
    early = EarlyUpdates()
    early.add(said("b"), size=1, now=0.0)
    early.claim("a", now=10.0)

    early.add(said("b", 1), size=1, now=10.0 + EARLY_SECONDS)
    early.add(said("b", 2), size=1, now=10.1 + EARLY_SECONDS)

    assert early.claim("b", now=50.0) == []


def test_what_nobody_has_claimed_is_forgotten_with_the_time_that_passes() -> None:
    early = EarlyUpdates()
    early.add(said("b"), size=1, now=0.0)
    early.claim("a", now=10.0)

    assert not early.clear_if_expired(10.0 + EARLY_SECONDS)
    assert early.clear_if_expired(10.1 + EARLY_SECONDS)
    assert early.claim("b", now=10.0) == []


def test_a_late_claim_finds_nothing() -> None:
    early = EarlyUpdates()
    early.add(said("b"), size=1, now=0.0)
    early.claim("a", now=10.0)

    assert early.claim("b", now=10.1 + EARLY_SECONDS) == []
