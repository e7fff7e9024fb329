"""Every text field there is: how a text goes in, and every way by which it comes out again."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace

from holdfast.domain.approvals import Approval, Question
from holdfast.domain.calls import CallState
from holdfast.domain.ids import ApprovalId, CallId, SessionId
from holdfast.domain.tools import ToolClass
from holdfast.ports.store import Tx
from tests.builders import AT
from tests.commits import append_rows
from tests.http.api.client import Client
from tests.http.asgi import Answer
from tests.http.v1.client import a_repository

# What was answered, and each place where the text stands then.
Outcome = tuple[Answer, list[Any]]


@dataclass(frozen=True)
class Field:
    """A field: what it takes beyond any clean text, and the way through it."""

    name: str
    through: Callable[[Client, str], Awaitable[Outcome]]
    longest: int = 1 << 20
    shortest: int = 0
    # Whether a text of blanks only is none.
    is_said: bool = False

    def is_legal(self, text: str) -> bool:
        """Tell whether the field has to take a text."""
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
        is_fit = self.shortest <= len(text) <= self.longest
        return is_fit and "\x00" not in text and (bool(text.strip()) or not self.is_said)


async def _session(client: Client) -> dict[str, Any]:
    return await client.session(repo_id=client.repo["id"])


async def _message(client: Client, body: dict[str, Any]) -> tuple[Answer, list[dict[str, Any]]]:
    """Post a message and return all forms of it."""
    session = await _session(client)
    path = f"/v1/sessions/{session['id']}"
    for each in body.pop("before", []):
        assert (await client.post(f"{path}/messages", each)).status == 201
    answer = await client.post(f"{path}/messages", body)
    if answer.status != 201:
        assert await client.messages(session) == []
        return answer, []
    one = await client.get(f"{path}/messages/{answer.document['id']}")
    exported = await client.get(f"{path}/export?format=jsonl")
    listed = (await client.messages(session))[-1]
    line = json.loads(exported.body.splitlines()[-1])
    return answer, [answer.document, one.document, listed, line]


def _said(role: str) -> Callable[[Client, str], Awaitable[Outcome]]:
    async def through(client: Client, text: str) -> Outcome:
        answer, forms = await _message(client, {"role": role, "content": {"text": text}})
        return answer, [form["content"]["text"] for form in forms]

    return through


async def _part(client: Client, text: str) -> Outcome:
    parts = [{"type": "text", "text": text}, {"type": "text", "text": "."}]
    answer, forms = await _message(client, {"role": "user", "parts": parts})
    return answer, [form["content"]["text"].removesuffix(".") for form in forms]


async def _called(client: Client, text: str) -> Outcome:
    call = {"id": "c", "name": "look", "arguments": {text: [text]}}
    answer, forms = await _message(client, {"role": "tool_call", "content": call})
    told = [form["content"]["arguments"] for form in forms]
    return answer, [each for pair in told for key, value in pair.items() for each in (key, *value)]


async def _resulted(client: Client, text: str) -> Outcome:
    call = {"role": "tool_call", "content": {"id": "c", "name": "look", "arguments": {}}}
    body = {"role": "tool_result", "tool_call_id": "c", "content": {"result": {"said": text}}}
    session = await _session(client)
    path = f"/v1/sessions/{session['id']}/messages"
    await client.post(path, call)
    answer = await client.post(path, body)
    if answer.status != 201:
        return answer, []
    rows = await client.rows(session)
    listed = (await client.messages(session))[-1]
    return answer, [
        listed["content"]["result"]["said"],
        rows[-1]["content"]["result"]["output"]["said"],
    ]


async def _prompted(client: Client, text: str) -> Outcome:
    session = await client.opened()
    answer = await client.prompt(session, text=text)
    rows = await client.rows(session)
    if answer.status != 202:
        assert rows == []
        return answer, []
    whole = await client.whole(session)
    return answer, [rows[0]["content"]["text"], whole["messages"][0]["content"]["text"]]


async def _titled(client: Client, text: str) -> Outcome:
    agent = (await client.get("/v1/agents")).document["data"][0]["id"]
    body = {"title": text, "repo_id": client.repo["id"]}
    answer = await client.post(f"/v1/agents/{agent}/sessions", body)
    if answer.status != 201:
        return answer, []
    session = answer.document
    found = await client.get(f"/v1/sessions?limit=1000&q={quote(text)}")
    titles = [each["title"] for each in found.document["data"] if each["id"] == session["id"]]
    fork = await client.post(f"/v1/sessions/{session['id']}/fork", {"title": text})
    whole = await client.whole(session)
    return answer, [session["title"], *titles, fork.document["title"], whole["title"]]


async def _tagged(client: Client, text: str) -> Outcome:
    session = await _session(client)
    answer = await client.patch(f"/v1/sessions/{session['id']}", {"tags": [text]})
    if answer.status != 200:
        return answer, []
    found = await client.get(f"/v1/sessions?limit=1000&tag={quote(text)}")
    tags = [each["tags"][0] for each in found.document["data"] if each["id"] == session["id"]]
    return answer, [*answer.document["tags"], *tags]


async def _noted(client: Client, text: str) -> Outcome:
    session = await _session(client)
    path = f"/v1/sessions/{session['id']}"
    answer = await client.patch(path, {"metadata": {text: {"deep": [text]}}})
    if answer.status != 200:
        return answer, []
    shown = (await client.get(path)).document["metadata"]
    whole = (await client.whole(session))["metadata"]
    return answer, [
        each for told in (shown, whole) for key in told for each in (key, *told[key]["deep"])
    ]


async def _ended(client: Client, text: str) -> Outcome:
    session = await _session(client)
    path = f"/v1/sessions/{session['id']}"
    answer = await client.post(f"{path}/close", {"reason": text})
    if answer.status != 200:
        return answer, []
    whole = await client.whole(session)
    row = whole["messages"][-1]["content"]["text"]
    return answer, [
        answer.document["reason"],
        whole["metadata"]["reason"],
        row.removeprefix("Session completed: "),
    ]


async def _named(client: Client, text: str) -> Outcome:
    body = {"name": text, "description": text, "system_prompt": text}
    answer = await client.post("/v1/agents", body)
    if answer.status != 201:
        return answer, []
    shown = (await client.get(f"/v1/agents/{answer.document['id']}")).document
    return answer, [shown[key] for key in body]


async def _equipped(client: Client, text: str) -> Outcome:
    # Not the text alone: a tool that a client runs needs a description that is not blank.
    parameters = {"type": "object", "title": text}
    tool = {"name": "look", "description": f"Look. {text}", "parameters": parameters}
    body = {"name": "Tools", "system_prompt": "", "tools": [tool], "tags": ["a", text]}
    answer = await client.post("/v1/agents", body)
    if answer.status != 201:
        return answer, []
    shown = (await client.get(f"/v1/agents/{answer.document['id']}")).document
    [described] = shown["tools"]
    description = described["description"].removeprefix("Look. ")
    return answer, [description, described["parameters"]["title"], shown["tags"][-1]]


async def _modelled(client: Client, text: str) -> Outcome:
    body = {"provider": "openai", "name": text, "display_name": text}
    answer = await client.post("/v1/models", body)
    if answer.status not in (200, 201):
        return answer, []
    shown = (await client.get(f"/v1/models/{answer.document['id']}")).document
    return answer, [shown["name"], shown["display_name"]]


async def _forked(client: Client, text: str) -> Outcome:
    session = await _session(client)
    path = f"/v1/sessions/{session['id']}/fork"
    answer = await client.post(path, {"title": text, "tags": [text]})
    if answer.status != 201:
        return answer, []
    whole = await client.whole(answer.document)
    shown = (await client.get(f"/v1/sessions/{answer.document['id']}")).document
    return answer, [whole["title"], shown["title"], *shown["tags"], *answer.document["tags"]]


async def _retitled(client: Client, text: str) -> Outcome:
    session = await _session(client)
    answer = await client.patch(f"/v1/sessions/{session['id']}", {"title": text})
    if answer.status != 200:
        return answer, []
    exported = await client.get(f"/v1/sessions/{session['id']}/export?format=markdown")
    # A heading has one line, whatever is in the title.
    heading = exported.body.decode().split("\n", 1)[0].removeprefix("# ")
    is_kept = heading == " ".join(text.split()) or not text.strip()
    return answer, [answer.document["title"], text if is_kept else heading]


async def _opened(client: Client, text: str) -> Outcome:
    answer = await client.post("/api/sessions", {"repoId": client.repo["id"], "title": text})
    if answer.status != 201:
        return answer, []
    return answer, [answer.document["title"], (await client.whole(answer.document))["title"]]


async def _registered(client: Client, text: str) -> Outcome:
    root = Path(client.repo["path"]).parent
    folder = a_repository(root / f"tree-{len(list(root.iterdir()))}")
    answer = await client.post("/api/repos", {"path": str(folder), "name": text})
    if answer.status != 201:
        return answer, []
    listed = (await client.get("/api/repos")).document["repos"]
    names = [each["name"] for each in listed if each["id"] == answer.document["id"]]
    return answer, [answer.document["name"], *names]


async def _changed(client: Client, text: str) -> Outcome:
    agent = await client.agent(name="Changing")
    body = {"name": text, "description": text, "system_prompt": text, "tags": [text]}
    answer = await client.patch(f"/v1/agents/{agent['id']}", body)
    if answer.status != 200:
        return answer, []
    shown = (await client.get(f"/v1/agents/{agent['id']}")).document
    found = await client.get(f"/v1/agents?limit=1000&tag={quote(text)}")
    listed = [each["name"] for each in found.document["data"] if each["id"] == agent["id"]]
    return answer, [shown["name"], shown["description"], shown["system_prompt"], *listed]


async def _tooled(client: Client, text: str) -> Outcome:
    tool = {"name": text, "description": "Looks.", text: {"said": text}}
    # A key of ours cannot be one of theirs.
    own = {"name", "description", "parameters", "approval"}
    body = {"name": "Tools", "system_prompt": "", "tools": [tool]}
    answer = await client.post("/v1/agents", body)
    if answer.status != 201 or text in own:
        return answer, [text] if answer.status == 201 else []
    [shown] = (await client.get(f"/v1/agents/{answer.document['id']}")).document["tools"]
    return answer, [shown["name"], shown[text]["said"]]


async def _known(client: Client, text: str) -> Outcome:
    agent = (await client.get("/v1/agents")).document["data"][0]["id"]
    context = {"working_dir": client.repo["path"], "variables": {"said": text}}
    body = {"repo_id": client.repo["id"], "context": context}
    answer = await client.post(f"/v1/agents/{agent}/sessions", body)
    if answer.status != 201:
        return answer, []
    shown = (await client.get(f"/v1/sessions/{answer.document['id']}")).document
    return answer, [shown["context"]["variables"]["said"]]


async def _settled(client: Client, text: str) -> Outcome:
    session = await _session(client)
    path = f"/v1/sessions/{session['id']}"
    call = {"role": "tool_call", "content": {"id": "c", "name": "look", "arguments": {}}}
    assert (await client.post(f"{path}/messages", call)).status == 201
    house = client.house

    async def lose(tx: Tx) -> None:
        head = await tx.sessions.state(house.owner, SessionId(session["id"]))
        assert head is not None
        call = await tx.calls.by_id(head, CallId("c"))
        assert call is not None
        lost = replace(call, state=CallState.UNKNOWN, result_sequence=1)
        await append_rows(tx, head, calls=(lost,))

    await house.store.write(lose)
    answer = await client.post(f"{path}/calls/c/settle", {"how": "skip", "note": text})
    if answer.status != 200:
        return answer, []
    said = (await client.messages(session))[-1]["content"]["text"]
    # Nothing is no note.
    return answer, [said.partition(". Note: ")[2] if text else ""]


async def _answered(client: Client, text: str) -> Outcome:
    session = await _session(client)
    house, session_id = client.house, SessionId(session["id"])
    question = Question(
        id=ApprovalId(session["id"]),
        tool="look",
        tool_class=ToolClass.PROCESS,
        question="May I?",
        digest="0" * 64,
    )
    waiting = Approval(session_id=session_id, question=question, asked_at=AT)

    async def ask(tx: Tx) -> None:
        head = await tx.sessions.state(house.owner, session_id)
        assert head is not None
        await append_rows(tx, head, approvals=(waiting,))

    await house.store.write(ask)
    path = f"/v1/sessions/{session_id}/approvals/{question.id}"
    answer = await client.post(path, {"decision": "deny", "note": text})
    if answer.status != 200:
        return answer, []
    return answer, [(await house.approvals.get(house.owner, session_id, session["id"])).note]


FIELDS = (
    Field("user text", _said("user"), is_said=True),
    Field("user part", _part),
    Field("assistant text", _said("assistant"), is_said=True),
    Field("system text", _said("system"), is_said=True),
    Field("call arguments", _called),
    Field("call result", _resulted),
    Field("prompt", _prompted, is_said=True),
    Field("title", _titled, shortest=1, longest=255),
    Field("tags", _tagged, shortest=1, longest=64),
    Field("metadata", _noted, longest=4_000),
    Field("reason", _ended, shortest=1, longest=255),
    Field("agent", _named, shortest=1, longest=255),
    Field("tools", _equipped, shortest=1, longest=64),
    Field("model", _modelled, shortest=1, longest=255, is_said=True),
    Field("fork", _forked, shortest=1, longest=64),
    Field("new title", _retitled, shortest=1, longest=255),
    Field("title of /api", _opened, shortest=1, longest=255),
    Field("repository", _registered, shortest=1, longest=255),
    Field("changed agent", _changed, shortest=1, longest=64),
    Field("tool", _tooled, shortest=1, longest=255, is_said=True),
    Field("variable", _known, longest=2_000),
    Field("settlement's note", _settled, longest=500),
    Field("answer's note", _answered, longest=500),
)
