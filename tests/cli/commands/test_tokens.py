"""`holdfast token …`: a secret is shown once, a link needs a server, and all owners are seen."""

import asyncio
import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from holdfast import RunScope as Turns
from holdfast import open_holdfast
from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.cli.server_file import ServerFile
from holdfast.domain.errors import Denied
from holdfast.domain.tokens import Caller, Scope
from tests.cli.conftest import Cli
from tests.cli.processes import at_terminal
from tests.marks import each_case
from tests.stand_ins import SettableClock

SECRET = re.compile(r"hf_[A-Za-z0-9_-]{43}")
SECOND = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def test_a_token_is_made_and_its_secret_is_all_that_stdout_has(cli: Cli, home: Path) -> None:
    ran = cli("token", "create", "ci")

    secret = ran.out.strip()
    assert (ran.code, ran.out) == (0, f"{secret}\n")
    assert SECRET.fullmatch(secret)
    assert ran.err.startswith("This is the secret of token ")
    assert resolved(home, secret).scope is Scope.WRITE
    assert cli("token", "create", "ci", "-q").err == ""


def test_for_programs_the_secret_stands_beside_the_token(cli: Cli, home: Path) -> None:
    made = cli(
        "token", "create", "ci", "--scope", "read", "--expires", "30d", "--owner", "eve", "--json"
    )
    listed = cli("token", "list", "--json").document

    token = made.document
    assert made.err == ""
    assert resolved(home, token.pop("secret")) == Caller(
        owner=token["owner"], scope=Scope.READ, token_id=token["id"]
    )
    assert {key: token[key] for key in ("owner", "name", "scope", "kind")} == {
        "owner": "eve",
        "name": "ci",
        "scope": "read",
        "kind": "issued",
    }
    assert SECOND.fullmatch(token["expires_at"])
    assert (token["revoked_at"], token["last_used_at"]) == (None, None)
    assert listed == {"data": [token], "next_cursor": None}


def test_a_token_for_tools_is_bound_to_agents_and_tools(cli: Cli, home: Path) -> None:
    agent = cli("agents", "create", "--name", "Clerk", "--json").document["id"]
    words = ("--scope", "tools", "--agent", "clerk", "--tool", "refund", "--tool", "charge")

    token = cli("token", "create", "till", *words, "--json").document

    assert (token["agents"], token["tools"]) == ([agent], ["refund", "charge"])
    caller = resolved(home, token["secret"])
    assert (caller.agents, caller.tools) == ((agent,), ("refund", "charge"))


@each_case(
    ("words", "code"),
    [
        (("ci", "--scope", "root"), 2),
        (("ci", "--tool", "refund"), 2),
        (("ci", "--scope", "tools", "--agent", "nobody"), 4),
        (("ci", "--expires", "soon"), 2),
        (("ci", "--expires", "0"), 2),
        (("ci", "--expires", "11111d"), 2),
        (("ci", "--owner", "a b"), 2),
        (("",), 2),
        ((), 2),
    ],
)
def test_a_faulty_wish_is_refused(cli: Cli, words: tuple[str, ...], code: int) -> None:
    ran = cli("token", "create", *words, "--json")

    assert (ran.code, ran.out) == (code, "")
    assert cli("token", "list", "--json").document["data"] == []


def test_tokens_of_all_owners_are_listed_page_by_page(cli: Cli) -> None:
    for owner, name in (("local", "a"), ("eve", "b"), ("local", "c")):
        cli("token", "create", name, "--owner", owner)

    first = cli("token", "list", "--limit", "2", "--json").document
    second = cli("token", "list", "--cursor", first["next_cursor"], "--json").document
    local = cli("token", "list", "--owner", "local", "--json").document
    plain = cli("token", "list")

    assert names(first) == ["a", "b"]
    assert (names(second), second["next_cursor"]) == (["c"], None)
    assert names(local) == ["a", "c"]
    heading, *rows = (line.split("\t") for line in plain.out.splitlines())
    assert heading == ["ID", "OWNER", "SCOPE", "KIND", "ENDS", "LAST USED", "NAME"]
    assert rows == [
        [each["id"], each["owner"], "write", "issued", "-", "-", each["name"]]
        for each in [*first["data"], *second["data"]]
    ]
    assert not SECRET.search(plain.out)
    assert cli("token", "list", "--limit", "0").code == 2


def test_no_tokens_is_no_error(cli: Cli) -> None:
    ran = cli("token", "list")

    assert (ran.code, ran.out) == (0, "")
    assert "holdfast token create" in ran.err


def test_tokens_that_have_ended_are_shown_when_asked_for(cli: Cli) -> None:
    cli("token", "create", "short", "--expires", "0.001")
    token = cli("token", "create", "long", "--json").document
    cli("token", "revoke", token["id"])

    hidden, shown = cli("token", "list"), cli("token", "list", "--all")

    assert hidden.out == ""
    ends = {line.split("\t")[-1]: line.split("\t")[4] for line in shown.out.splitlines()[1:]}
    assert ends == {"short": "expired", "long": "revoked"}


@pytest.mark.parametrize("cut", [36, 35])
def test_a_token_is_revoked_by_its_id_or_the_beginning_of_it(
    cli: Cli, home: Path, cut: int
) -> None:
    token = cli("token", "create", "ci", "--owner", "eve", "--json").document
    secret = token.pop("secret")

    ran = cli("token", "revoke", token["id"][:cut].upper(), "--json")
    again = cli("token", "revoke", token["id"])

    assert ran.document == {**token, "revoked_at": ran.document["revoked_at"]}
    assert SECOND.fullmatch(ran.document["revoked_at"])
    assert again.out == f"Revoked token {token['id']} (ci).\n"
    with pytest.raises(Denied):
        resolved(home, secret)


@each_case("wanted", ["", "0", "01", "nonsense", "ffffffff-"])
def test_a_token_that_is_not_there_is_not_found(cli: Cli, wanted: str) -> None:
    cli("token", "create", "ci")

    ran = cli("token", "revoke", wanted, "--json")

    assert (ran.code, ran.error["error"]) == (4, "token_not_found")


def test_a_beginning_that_several_have_is_refused(cli: Cli, home: Path) -> None:
    made = asyncio.run(made_at_once(home, 2))

    ran = cli("token", "revoke", made[0][:8], "--json")

    assert (ran.code, ran.error["details"]) == (2, {"tokens": sorted(made)})


def test_in_the_place_of_the_local_token_there_is_a_new_one(cli: Cli, home: Path) -> None:
    token_id, before = asyncio.run(local(home))

    ran = cli("token", "revoke", token_id)
    (now,) = cli("token", "list", "--json").document["data"]

    after = (home / "token").read_text().strip()
    assert (ran.code, ran.err) == (0, "")
    assert stat.S_IMODE((home / "token").stat().st_mode) == 0o600
    assert resolved(home, after).token_id == now["id"] != token_id
    with pytest.raises(Denied):
        resolved(home, before)


def test_a_file_that_others_can_read_does_not_keep_its_token_from_being_revoked(
    cli: Cli, home: Path
) -> None:
    token_id, before = asyncio.run(local(home))
    (home / "token").chmod(0o644)

    ran = cli("token", "revoke", token_id)

    assert (ran.code, ran.out) == (0, f"Revoked token {token_id} (local).\n")
    assert "could be read by others" in ran.err
    with pytest.raises(Denied):
        resolved(home, before)


def test_a_link_signs_in_once_to_the_server_that_runs(cli: Cli, home: Path) -> None:
    home.mkdir(mode=0o700)
    card = ServerFile(home, "http://127.0.0.1:8765")
    card.claim()

    plain = cli("token", "link").out
    (url,) = cli("token", "link", "--scope", "read", "--owner", "eve", "--json").document.values()
    card.withdraw()

    assert re.fullmatch(r"http://127\.0\.0\.1:8765/sign-in\?code=hf_[A-Za-z0-9_-]{43}\n", plain)
    caller = asyncio.run(signed_in(home, url.partition("=")[2]))
    assert (caller.owner, caller.scope, caller.is_cookie) == ("eve", Scope.READ, True)
    with pytest.raises(Denied):
        asyncio.run(signed_in(home, url.partition("=")[2]))


@pytest.mark.parametrize("card", [None, {"pid": 1, "version": "0"}, {"url": 7}, []])
def test_without_a_server_there_is_no_link(cli: Cli, home: Path, card: object) -> None:
    home.mkdir(mode=0o700)
    if card is not None:
        (home / "server.json").write_text(json.dumps(card))

    ran = cli("token", "link", "--json")

    assert (ran.code, ran.error["error"]) == (5, "server_not_running")
    assert "holdfast serve" in ran.error["message"]
    assert not (home / "history.db").exists()


@pytest.mark.slow
def test_at_a_terminal_the_id_stays_whole(home: Path) -> None:
    with at_terminal(home, "token", "create", "a name") as terminal:
        terminal.wait_for("it will not be shown again")
        assert terminal.ended() == 0
    with at_terminal(home, "token", "list", columns=60) as terminal:
        terminal.wait_for("a name")
        assert terminal.ended() == 0
        assert re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12} ", terminal.shown)


def names(page: dict[str, Any]) -> list[str]:
    """Return what the tokens of a page are called."""
    return [each["name"] for each in page["data"]]


def resolved(home: Path, secret: str) -> Caller:
    """Return who calls with a secret."""

    async def ask() -> Caller:
        async with open_holdfast(home, scope=Turns.NONE) as house:
            return await house.tokens.resolve(secret)

    return asyncio.run(ask())


async def local(home: Path) -> tuple[str, str]:
    """Make the local token as a server does; return its id and its secret."""
    async with open_holdfast(home, scope=Turns.NONE) as house:
        token, secret = await house.tokens.ensure_local()
    return token.id, secret


async def made_at_once(home: Path, count: int) -> list[str]:
    """Make tokens in the same moment; return their ids."""
    outside = Environment(clock=SettableClock())
    async with open_holdfast(home, scope=Turns.NONE, outside=outside) as house:
        made = [await house.tokens.create(house.owner, "a", Scope.READ) for _ in range(count)]
    return [token.id for token, _ in made]


async def signed_in(home: Path, code: str) -> Caller:
    """Return who a browser is that signs in."""
    async with open_holdfast(home, scope=Turns.NONE) as house:
        return await _exchanged(house, code)


async def _exchanged(house: Holdfast, code: str) -> Caller:
    _, secret = await house.tokens.exchange(code)
    return await house.tokens.resolve(secret)
