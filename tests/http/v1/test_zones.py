"""Zones over HTTP: desks and archives, their bytes and lines, and who may see them."""

import json

import pytest

from holdfast.domain.tokens import Scope
from tests.http.v1.client import Visitor, refusal
from tests.marks import demands, each_case

pytestmark = pytest.mark.anyio

NAMES = ("", "/state", "/output", "/replay", "/files/output", "/archives", "/archives/1")


async def test_a_fresh_desk_is_empty_and_no_error(visitor: Visitor) -> None:
    zone = "agent:a:current"

    assert (await visitor.get("/v1/zones/a")).document == {
        "zone": zone,
        "session_id": None,
        "files": [],
        "preview": "",
    }
    assert (await visitor.get("/v1/zones/a/state")).document == {
        "zone": zone,
        "content": None,
        "modified_ms": None,
    }
    assert (await visitor.get("/v1/zones/a/output")).document == {
        "lines": [],
        "start": 0,
        "total": 0,
        "generation": None,
        "torn": False,
        "tail_open": False,
    }
    assert (await visitor.post("/v1/zones/a/archive")).document == {
        "archive_zoneid": None,
        "archived_at_ms": None,
        "files": {},
    }
    assert (await visitor.get("/v1/zones/a/archives")).document == {
        "data": [],
        "next_cursor": None,
    }
    assert (await visitor.get("/v1/zones/a/replay")).document["source"] == "empty"


@demands("S4-070")
async def test_a_list_of_archives_continues_at_its_cursor(visitor: Visitor) -> None:
    for number in range(5):
        await visitor.ask("PUT", "/v1/zones/a/state", {"content": str(number)})
        await visitor.post("/v1/zones/a/archive")

    found, cursor = [], ""
    while cursor is not None:
        page = (await visitor.get(f"/v1/zones/a/archives?limit=2{cursor}")).document
        found.append([each["archived_at_ms"] for each in page["data"]])
        cursor = page["next_cursor"] and f"&cursor={page['next_cursor']}"

    assert [len(each) for each in found] == [2, 2, 1]
    times = [ms for page in found for ms in page]
    assert times == sorted(times, reverse=True)
    for wrong in ("x", "-1", "01"):
        answer = await visitor.get(f"/v1/zones/a/archives?cursor={wrong}")
        assert refusal(answer) == (400, "invalid_query")


async def test_a_desk_goes_through_its_life(visitor: Visitor) -> None:
    written = await visitor.ask("PUT", "/v1/zones/a/state", {"content": "{}", "if_modified_ms": 0})
    appended = await visitor.post("/v1/zones/a/output", {"line": '{"role":"user","text":"hi"}'})
    desk = (await visitor.get("/v1/zones/a")).document
    archived = (await visitor.post("/v1/zones/a/archive")).document
    ms = archived["archived_at_ms"]
    listed = (await visitor.get("/v1/zones/a/archives?limit=5")).document
    archive = (await visitor.get(f"/v1/zones/a/archives/{ms}")).document
    output = (await visitor.get(f"/v1/zones/a/archives/{ms}/output")).document
    restored = (await visitor.post(f"/v1/zones/a/archives/{ms}/restore")).document
    state = (await visitor.get("/v1/zones/a/state")).document
    gone = [(await visitor.delete(f"/v1/zones/a/archives/{ms}")).document for _ in range(2)]

    assert written.document == {
        "zone": "agent:a:current",
        "bytes_written": 2,
        "modified_ms": written.document["modified_ms"],
    }
    assert appended.document == {"zone": "agent:a:current", "offset": 0, "bytes_written": 28}
    assert [(file["name"], file["size"], file["lines"]) for file in desk["files"]] == [
        ("output", 28, 1),
        ("output.state.json", 2, 1),
    ]
    assert archived["files"] == {"output": 28, "output.state.json": 2}
    assert [each["archive_zoneid"] for each in listed["data"]] == [archived["archive_zoneid"]]
    assert (archive["content"], len(archive["files"])) == ("{}", 2)
    assert output["lines"] == ['{"role":"user","text":"hi"}']
    assert restored == {
        "zone": "agent:a:current",
        "restored_from": archived["archive_zoneid"],
        "displaced": None,
    }
    assert state["content"] == "{}"
    assert gone == [{"deleted": True}, {"deleted": False}]


async def test_a_desk_and_its_archive_show_the_first_prompt(visitor: Visitor) -> None:
    await visitor.post("/v1/zones/a/output", {"line": '{"role":"user","text":"hi"}'})
    desk = (await visitor.get("/v1/zones/a")).document
    await visitor.post("/v1/zones/a/archive")
    (archive,) = (await visitor.get("/v1/zones/a/archives")).document["data"]

    assert (desk["preview"], archive["preview"]) == ("hi", "hi")


@demands("S4-003")
@each_case("id", ["a:b", "../etc", "a b", "a.b", "café", "a\n", "\u0661"])
@each_case("name", NAMES)
async def test_a_bad_id_is_refused_in_the_same_words(visitor: Visitor, name: str, id: str) -> None:
    answer = await visitor.asked("GET", f"/v1/zones/{spelled(id)}{name}")

    assert refusal(answer) == (400, "invalid_definition_id")
    assert answer.document["message"] == (
        f"INVALID_DEFINITION_ID: expected [A-Za-z0-9_-]+, got {json.dumps(id)}"
    )
    assert answer.document["details"] == {"value": id}


@each_case("id", ["a:b", "..", "%61", "", "\x00"])
async def test_a_bad_id_is_refused_wherever_something_would_be_changed(
    visitor: Visitor, id: str
) -> None:
    requests = {
        ("PUT", "/state"): {"content": "x"},
        ("POST", "/output"): {"line": "x"},
        ("POST", "/archive"): None,
        ("POST", "/archives/1/restore"): None,
        ("DELETE", "/archives/1"): None,
    }
    for (method, name), body in requests.items():
        answer = await visitor.ask(method, f"/v1/zones/{id}{name}", body)
        # Nothing between two slashes is no id at all, and so no place.
        assert refusal(answer)[0] == (404 if id == "" else 400)
        assert id == "" or answer.document["error"] == "invalid_definition_id"
    assert await visitor.house.store.read(lambda tx: tx.zones.all()) == []


@pytest.mark.parametrize("depth", [50, 200, 800, 900, 925, 950, 975])
async def test_a_snapshot_of_any_depth_is_replayed_or_told(visitor: Visitor, depth: int) -> None:
    content = '{"nodes":[' + "[" * depth + "]" * depth + "]}"
    await visitor.ask("PUT", "/v1/zones/a/state", {"content": content})

    answer = await visitor.get("/v1/zones/a/replay")

    told = (answer.status, answer.document["problem"])
    assert told == (200, None if depth == 50 else "not_json")


def spelled(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


@each_case("ms", ["7", "07", "x", "-1", "9" * 40])
async def test_an_archive_that_is_not_there_is_not_found(visitor: Visitor, ms: str) -> None:
    for path in (f"{ms}", f"{ms}/output", f"{ms}/files/output"):
        answer = await visitor.get(f"/v1/zones/a/archives/{path}")
        assert refusal(answer) == (404, "archive_not_found")
    answer = await visitor.post(f"/v1/zones/a/archives/{ms}/restore")
    assert refusal(answer) == (404, "archive_not_found")
    gone = await visitor.delete(f"/v1/zones/a/archives/{ms}")
    if ms == "7":
        assert gone.document == {"deleted": False}
    else:
        assert refusal(gone) == (404, "archive_not_found")
    assert refusal(await visitor.get("/v1/zones/a%3Ab/archives/x")) == (
        400,
        "invalid_definition_id",
    )


async def test_two_views_are_told_of_each_other(visitor: Visitor) -> None:
    first = await visitor.ask("PUT", "/v1/zones/a/state", {"content": "1"})
    late = await visitor.ask("PUT", "/v1/zones/a/state", {"content": "2", "if_modified_ms": 0})
    await visitor.post("/v1/zones/a/output", {"line": "x"})
    other = await visitor.get("/v1/zones/a/output?generation=0123456789abcdef")

    assert refusal(late) == (409, "zone_changed")
    assert late.document["details"] == {"modified_ms": first.document["modified_ms"]}
    assert refusal(other) == (409, "zone_changed")


@each_case("query", ["limit=0", "limit=10001", "start=-1", "generation=x", "a=b"])
async def test_odd_questions_about_lines_are_refused(visitor: Visitor, query: str) -> None:
    assert refusal(await visitor.get(f"/v1/zones/a/output?{query}")) == (400, "invalid_query")
    assert refusal(await visitor.get("/v1/zones/a/archives?limit=-1")) == (400, "invalid_query")


async def test_lines_and_replays_are_paged(visitor: Visitor) -> None:
    for number in range(5):
        await visitor.post("/v1/zones/a/output", {"line": f"{number}"})

    page = (await visitor.get("/v1/zones/a/output?start=1&limit=2")).document
    replay = (await visitor.get("/v1/zones/a/replay?page=2")).document

    assert (page["lines"], page["start"], page["total"]) == (["1", "2"], 1, 5)
    assert (replay["source"], replay["lines"], replay["start"]) == ("tail", ["3", "4"], 3)
    assert replay["generation"] == page["generation"]


async def test_a_file_is_read_whole_or_in_a_range(visitor: Visitor) -> None:
    content = "0123456789" * 1000
    await visitor.ask("PUT", "/v1/zones/a/state", {"content": content})
    path = "/v1/zones/a/files/output.state.json"

    whole = await visitor.get(path)
    some = await visitor.get(path, range="bytes=5-4999", accept_encoding="gzip")
    rest = await visitor.get(path, range="bytes=9995-")
    last = await visitor.get(path, range="bytes=-3")
    beyond = await visitor.get(path, range="bytes=10000-")
    several = await visitor.get(path, range="bytes=0-1,3-4")
    stale = await visitor.get(path, range="bytes=0-1", if_range='"other"')

    assert (whole.status, whole.body, whole.headers["content-type"]) == (
        200,
        content.encode(),
        "application/octet-stream",
    )
    assert (some.status, some.body) == (206, content[5:5000].encode())
    assert some.headers["content-range"] == "bytes 5-4999/10000"
    assert (rest.body, last.body) == (b"56789", b"789")
    assert refusal(beyond) == (416, "range_not_satisfiable")
    assert [(each.status, len(each.body)) for each in (several, stale)] == [(200, 10_000)] * 2
    assert refusal(await visitor.get("/v1/zones/a/files/other")) == (404, "path_not_found")


async def test_a_file_that_is_the_same_is_not_sent_again(visitor: Visitor) -> None:
    await visitor.post("/v1/zones/a/output", {"line": "x"})
    tag = (await visitor.get("/v1/zones/a/files/output")).headers["etag"]

    same = await visitor.get("/v1/zones/a/files/output", if_none_match=tag)
    await visitor.post("/v1/zones/a/output", {"line": "y"})
    grown = await visitor.get("/v1/zones/a/files/output", if_none_match=tag)

    assert (same.status, same.body, same.headers["etag"]) == (304, b"", tag)
    assert (grown.status, grown.body) == (200, b"x\ny\n")
    assert grown.headers["etag"] != tag


async def test_somebody_elses_zones_look_like_none(visitor: Visitor) -> None:
    await visitor.post("/v1/zones/a/output", {"line": "private"})
    ms = (await visitor.post("/v1/zones/a/archive")).document["archived_at_ms"]
    await visitor.post("/v1/zones/a/output", {"line": "private"})
    other = await visitor.as_("somebody")

    for name in ("", "/state", "/output", "/replay", "/files/output", "/archives"):
        theirs = await other.get(f"/v1/zones/a{name}")
        never = await other.get(f"/v1/zones/b{name}")
        assert (theirs.status, theirs.body.replace(b"agent:a:", b"agent:b:")) == (
            never.status,
            never.body,
        )
    for name in (f"{ms}", f"{ms}/output", f"{ms}/files/output"):
        assert refusal(await other.get(f"/v1/zones/a/archives/{name}"))[0] == 404
    assert (await other.delete(f"/v1/zones/a/archives/{ms}")).document == {"deleted": False}
    reader = await visitor.as_("local", Scope.READ)
    assert len((await reader.get("/v1/zones/a/archives")).document["data"]) == 1


async def test_the_session_at_a_desk_is_named_by_it(visitor: Visitor) -> None:
    agent = await visitor.agent()
    session = await visitor.session(agent["id"])

    desk = (await visitor.get(f"/v1/zones/{agent['slug']}")).document

    assert (desk["zone"], desk["session_id"]) == (f"agent:{agent['id']}:current", session["id"])
