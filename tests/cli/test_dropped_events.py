"""Rows of events that something else removed: every surface shows the conversation and a gap."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.cli.processes import PATIENCE, beside, running
from tests.cli.server_probe import card_of, got, sent
from tests.houses import raw
from tests.marks import demands

pytestmark = pytest.mark.slow

VARIABLE = "HOLDFAST_DATABASE_URL"
# Eight events: two are messages, which are rows of their own and stay.
DROPPED = {
    "all": ("sequence > 0", [(1, 1), (3, 6), (8, 8)]),
    "first": ("sequence = 1", [(1, 1)]),
    "first rows": ("sequence <= 4", [(1, 1), (3, 4)]),
    "middle": ("sequence IN (4, 6)", [(4, 4), (6, 6)]),
    "last": ("sequence = 8", [(8, 8)]),
    "last rows": ("sequence >= 5", [(5, 6), (8, 8)]),
}
# What the page asks for before it listens.
OF_PAGE = (
    "session.started,session.completed,session.failed,step.started,step.generated,plan.changed"
)
Gaps = list[tuple[int, int]]


@dataclass(frozen=True)
class Place:
    """A server with one session of one turn, and how it is asked."""

    url: str
    home: Path
    secret: str
    session: str
    more: dict[str, str]

    def get(self, path: str) -> Any:
        status, document = got(f"{self.url}{path}", secret=self.secret)
        assert status == 200, document
        return document

    def text(self, path: str) -> str:
        headers = {"Authorization": f"Bearer {self.secret}"}
        with urlopen(Request(f"{self.url}{path}", headers=headers), timeout=PATIENCE) as answer:
            return str(answer.read().decode())

    def frames(self, query: str = "?until=settled") -> list[tuple[str, Any]]:
        """Return the name and the data of every frame of the stream."""
        blocks = self.text(f"{self.of_session}/events{query}").split("\n\n")
        return [frame for block in blocks if (frame := _frame(block)) is not None]

    def command(self, *words: str) -> Any:
        """Run the command to its end; return what it printed as JSON lines."""
        done = beside(self.home, *words, "--json", more=self.more)
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]

    def drop(self, which: str = "sequence > 0") -> None:
        key = f"(SELECT key FROM sessions WHERE id = '{self.session}')"
        with raw(self.home) as connection:
            for table in ("events", "deltas"):
                connection.execute(f"DELETE FROM {table} WHERE session_key = {key} AND {which}")

    @property
    def of_session(self) -> str:
        return f"/v1/sessions/{self.session}"


def _frame(block: str) -> tuple[str, Any] | None:
    lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line[1:])
    return (lines["event"], json.loads(lines["data"])) if "event" in lines else None


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.torture)])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """Run a server on each store, after one turn with the model that needs no network."""
    more = {}
    if request.param == "postgres":
        more[VARIABLE] = request.getfixturevalue("databases").fresh()
        monkeypatch.setenv(VARIABLE, more[VARIABLE])
    home = tmp_path / "home"
    with running(home, "serve", "--port", "0", "--json", more=more) as server:
        url = card_of(server)["url"]
        secret = (home / "token").read_text().strip()
        body = {"name": "sums", "slug": "sums", "system_prompt": "Add."}
        sent(f"{url}/v1/agents", body, secret)
        yield conversation(Place(url, home, secret, "", more))


def conversation(place: Place) -> Place:
    """Open a session and let it have one turn."""
    opened = sent(f"{place.url}/v1/agents/sums/sessions", {}, place.secret)
    found = replace(place, session=opened["id"])
    speak(found, "What is 2+3?")
    assert found.get(found.of_session)["last_event"] == 8
    return found


def speak(place: Place, text: str) -> None:
    """Send a message and wait for the end of its turn."""
    sent(
        f"{place.url}{place.of_session}/messages",
        {"role": "user", "content": {"text": text}},
        place.secret,
    )
    assert place.frames()[-1][1]["reason"] == "settled"


@demands("S2-001", "S2-050b", "S2-001b", "S2-001d", "S2-001e", "S2-001f", "S2-001g", "S2-001h")
def test_every_reader_gets_the_conversation_and_a_gap(place: Place) -> None:
    for which, gaps in DROPPED.values():
        found = conversation(place)
        messages = found.get(f"{found.of_session}/messages")
        transcript = found.text(f"{found.of_session}/export?format=markdown")

        found.drop(which)

        assert found.get(f"{found.of_session}/messages") == messages
        assert found.text(f"{found.of_session}/export?format=markdown") == transcript
        _require_listed(found, gaps)
        _require_streamed(found, gaps)


@demands("S2-001", "S0-302")
def test_commands_show_the_gap_and_the_doctor_names_it(place: Place) -> None:
    place.drop()

    shown, _ = place.command("sessions", "show", place.session)
    _, (listed,) = place.command("sessions", "events", place.session)
    _, (verified,) = place.command("sessions", "verify", place.session)
    code, (found,) = place.command("doctor")

    lines = [each for each in listed["data"] if each["type"] == "holdfast:gap"]
    assert [(each["from"], each["to"]) for each in lines] == DROPPED["all"][1]
    assert (shown, verified["messages"], verified["faults"]) == (0, 2, [])
    (finding,) = found["findings"]
    assert (code, finding["code"]) == (1, "events_missing")
    assert finding["message"] == (
        f"Session {place.session} lacks events that Holdfast did not remove: 1, 3 to 6, 8. "
        "Readers get a gap there; no message is affected."
    )


def _require_listed(place: Place, gaps: Gaps) -> None:
    found: list[Any] = []
    cursor = ""
    while cursor is not None:
        page = place.get(f"{place.of_session}/events?format=json&deltas=both{cursor}")
        found += page["gaps"]
        cursor = page["next_cursor"] and f"&cursor={page['next_cursor']}"
    assert [(gap["from"], gap["to"]) for gap in found] == gaps
    assert {gap["reason"] for gap in found} <= {"missing", "pruned"}
    assert all(gap["resync"].endswith("/messages") for gap in found)
    page = place.get(f"{place.of_session}/events?format=json&after=0&limit=1000&types={OF_PAGE}")
    assert {each["sequence"] for each in page["data"]}.isdisjoint(_numbers(gaps))


def _require_streamed(place: Place, gaps: Gaps) -> None:
    frames = place.frames("?until=settled&deltas=both")
    found = [(data["from"], data["to"]) for name, data in frames if name == "gap"]
    numbers = {data["sequence"] for name, data in frames if "sequence" in data}
    assert found == gaps
    assert numbers | _numbers(gaps) == set(range(1, 9))
    assert frames[-1] == ("closing", frames[-1][1] | {"reason": "settled", "after": 8})


def _numbers(gaps: Gaps) -> set[int]:
    return {number for first, last in gaps for number in range(first, last + 1)}


@demands("S2-001")
def test_turns_go_on_and_new_events_get_the_next_numbers(place: Place) -> None:
    place.drop()

    speak(place, "What is 4+4?")

    listed = place.get(f"{place.of_session}/events?format=json&after=8")
    assert [gap["from"] for gap in listed["gaps"] if gap["reason"] == "missing"] == []
    assert (listed["data"][0]["sequence"], place.get(place.of_session)["last_event"]) == (9, 15)
    texts = [each["content"] for each in place.get(f"{place.of_session}/messages")["data"]]
    assert len(texts) == 4


@pytest.mark.torture
def test_a_fork_and_its_parent_are_read_and_continued(place: Place) -> None:
    place.drop()
    messages = place.get(f"{place.of_session}/messages")["data"]

    fork = sent(f"{place.url}{place.of_session}/fork", {}, place.secret)["id"]
    other = replace(place, session=fork)
    speak(other, "What is 4+4?")

    read = other.get(f"{other.of_session}/messages")["data"]
    assert [each["content"] for each in read[:2]] == [each["content"] for each in messages]
    assert len(read) == 4


@pytest.mark.torture
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_store_without_events_is_backed_up_and_restored(place: Place, tmp_path: Path) -> None:
    place.drop()
    copy, other = tmp_path / "copy", tmp_path / "other"

    made = beside(place.home, "backup", str(copy), "--json")
    restored = beside(other, "restore", str(copy), "--json", more=_key_of(place.home))

    assert made.returncode == 0, made.stderr
    assert restored.returncode == 0, restored.stderr


def _key_of(home: Path) -> dict[str, str]:
    return {"HOLDFAST_KEY": (home / "key").read_text().strip()}


def test_a_cursor_inside_a_gap_is_followed_from_there(place: Place) -> None:
    place.drop("sequence BETWEEN 3 AND 6")

    first = place.frames("?until=settled&since=4")[1]
    try:
        status = place.get(f"{place.of_session}/events?format=json&after=99")
    except (AssertionError, HTTPError) as error:
        status = str(error)

    assert (first[0], first[1]["from"], first[1]["to"]) == ("gap", 5, 6)
    assert "cursor_ahead" in str(status)
