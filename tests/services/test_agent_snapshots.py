"""A session keeps its agent as it was at the opening: its prompt rendered once, its tools known."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Config, Holdfast, SessionRequest, open_holdfast
from holdfast.config.settings import Chat
from holdfast.domain.errors import Code, Denied, Invalid
from holdfast.domain.messages import Notice, NoticeCode, Role
from holdfast.domain.queries import SessionQuery
from holdfast.domain.sessions import Session, SessionContext
from holdfast.domain.tools import ACCEPTED_TOOLS, CATALOGUE, FsTier, Grant
from tests.houses import played
from tests.marks import demands, each_case
from tests.tooled import a_config, asks, call, outcomes, says, started

pytestmark = pytest.mark.anyio

SECRET = "a-managed-value-0123456789"


async def opened(
    house: Holdfast, desk: Path, prompt: str = "", variables: Any = None, **agent: Any
) -> Session:
    """Open a session with an agent of that prompt and these fields."""
    fields = {"name": "Worker", "system_prompt": prompt, "grant": None, **agent}
    made = await house.agents.create(house.owner, fields)
    context = SessionContext(working_dir=str(desk), variables=variables or {})
    return await house.open(made.slug, SessionRequest(context=context))


async def notices(house: Holdfast, session: Session) -> list[tuple[int, str, str]]:
    rows = await house.read(session.id)
    return [
        (row.turn, str(part.code), part.text)
        for row in rows
        for part in row.parts
        if isinstance(part, Notice)
    ]


class TestTools:
    """What nobody knows is refused; what cannot be had is told once and not offered."""

    async def test_every_tool_of_the_catalogue_is_known(
        self, quiet: Holdfast, tmp_path: Path
    ) -> None:
        session = await opened(quiet, tmp_path, tools=sorted(CATALOGUE))

        assert [tool.name for tool in session.tools] == sorted(CATALOGUE)
        assert await notices(quiet, session) == []

    @each_case("name", ["no_such_tool", "READ_FILE", "read_file ", "mcp_x_y"])
    async def test_an_unknown_tool_opens_no_session(
        self, quiet: Holdfast, tmp_path: Path, name: str
    ) -> None:
        with pytest.raises(Invalid) as caught:
            await opened(quiet, tmp_path, tools=["read_file", name])

        assert (caught.value.code, caught.value.details) == (Code.UNKNOWN_TOOL, {"tool": name})
        assert (await quiet.sessions.list(SessionQuery(owner=quiet.owner))).items == ()

    @demands("S0-160")
    async def test_tools_of_other_programs_are_told_in_one_notice(
        self, quiet: Holdfast, tmp_path: Path
    ) -> None:
        names = sorted(ACCEPTED_TOOLS)
        session = await opened(quiet, tmp_path, tools=[*names, "read_file"])
        rows = await quiet.read(session.id)

        text = (
            f"These tools are not available: {', '.join(names)}. invoke_agent can start no agent: "
            'name those that it may start, as {"name": "invoke_agent", "agents": ["SLUG"]} in the '
            "tools of the agent."
        )
        assert await notices(quiet, session) == [(0, "tool_unavailable", text)]
        assert [row.role for row in rows] == [Role.SYSTEM]
        assert session.message_count == 1

    async def test_a_tool_that_somebody_described_is_kept_and_told(
        self, quiet: Holdfast, tmp_path: Path
    ) -> None:
        theirs = {"name": "theirs", "description": "Does something."}
        session = await opened(quiet, tmp_path, tools=[theirs])

        assert [tool.name for tool in session.tools] == ["theirs"]
        (notice,) = await notices(quiet, session)
        assert notice[1] == NoticeCode.TOOL_UNAVAILABLE

    async def test_a_tool_of_a_declared_server_is_accepted(
        self, quiet: Holdfast, tmp_path: Path
    ) -> None:
        servers = [{"id": "books", "transport": "stdio", "command": "books"}]
        session = await opened(quiet, tmp_path, tools=["mcp_books_find"], mcp_servers=servers)
        assert await notices(quiet, session) == []
        with pytest.raises(Invalid):
            await opened(quiet, tmp_path, tools=["mcp_bookshop_find"], mcp_servers=servers)

    async def test_what_was_named_and_cannot_be_had_is_refused_when_it_is_called(
        self, home: Path, tmp_path: Path
    ) -> None:
        config = a_config(home, asks(call("web_search", text="hi")), says("done"))
        async with open_holdfast(config=config) as house:
            session = await started(house, tmp_path / "desk", "web_search")
            rows = await played(house, session.id)

        assert outcomes(rows) == ["web_search error/unknown_tool"]

    @demands("S0-174")
    async def test_a_session_may_have_fewer_tools_and_never_more(
        self, home: Path, tmp_path: Path
    ) -> None:
        config = a_config(home, asks(call("write_file", path="a", content="b")), says("done"))
        async with open_holdfast(config=config) as house:
            session = await started(house, tmp_path / "desk", tools=("read_file",))
            rows = await played(house, session.id)
            with pytest.raises(Denied) as caught:
                await house.open(request=SessionRequest(tools=("read_output",)))

        assert outcomes(rows) == ["write_file denied/not_granted"]
        assert caught.value.code is Code.GRANT_EXCEEDED


class TestVariables:
    """Variables are put into the prompt once, in one pass, and never anywhere else."""

    @demands("S0-013", "S0-012")
    async def test_they_are_in_the_frozen_prompt(self, quiet: Holdfast, tmp_path: Path) -> None:
        session = await opened(
            quiet, tmp_path, "Speak {{ctx.tongue}} to {{ctx.who}}.", {"tongue": "Latin", "who": "A"}
        )
        agent = await quiet.agents.get(quiet.owner, "worker")

        assert session.agent.system_prompt == "Speak Latin to A."
        assert agent.system_prompt == "Speak {{ctx.tongue}} to {{ctx.who}}."
        assert await notices(quiet, session) == []

    async def test_a_value_is_not_looked_into(self, quiet: Holdfast, tmp_path: Path) -> None:
        variables = {"x": "{{ctx.y}}", "y": "deep", "z": "{"}
        session = await opened(quiet, tmp_path, "{{ctx.x}} {{ctx.z}}{{ctx.z}}ctx.y}}", variables)

        assert session.agent.system_prompt == "{ {ctx.y}} { {ctx.y}}"

    async def test_an_unknown_name_stays_and_is_told_once(
        self, quiet: Holdfast, tmp_path: Path
    ) -> None:
        session = await opened(quiet, tmp_path, "{{ctx.a}} {{ctx.b}} {{ctx.a}} {{other}}")

        assert session.agent.system_prompt == "{{ctx.a}} {{ctx.b}} {{ctx.a}} {{other}}"
        assert await notices(quiet, session) == [
            (
                0,
                "unknown_variable",
                f"The prompt uses a variable that the session does not have: {name}",
            )
            for name in ("a", "b")
        ]

    @demands("S0-013")
    async def test_messages_arguments_and_results_are_left_alone(
        self, home: Path, tmp_path: Path
    ) -> None:
        desk = tmp_path / "desk"
        desk.mkdir()
        (desk / "{{ctx.x}}").write_text("{{ctx.x}}")
        config = a_config(home, asks(call("read_file", path="{{ctx.x}}")), says("{{ctx.x}}"))
        async with open_holdfast(config=config) as house:
            context = SessionContext(working_dir=str(desk), variables={"x": "put in"})
            session = await started(house, desk, text="{{ctx.x}}", context=context)
            rows = await played(house, session.id)

        assert "put in" not in str([row.parts for row in rows])
        assert str([row.parts for row in rows]).count("{{ctx.x}}") == 4

    @demands("S0-013", "S0-014", "S0-012c", "S0-275")
    @pytest.mark.parametrize(
        "value",
        [
            SECRET,
            f"before {SECRET} after",
            "sk-ant-api03-0123456789abcdefghijklmnopqrstuvwxyz0123456789",
            "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n",
            "https://user:password1234@example.com/",
        ],
    )
    async def test_a_secret_opens_no_session_and_is_not_repeated(
        self, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
    ) -> None:
        monkeypatch.setenv("HOLDFAST_OPENAI_API_KEY", SECRET)
        async with open_holdfast(home) as house:
            with pytest.raises(Invalid) as caught:
                await opened(house, tmp_path, "{{ctx.key}}", {"good": "plain", "key": value})
            assert (await house.sessions.list(SessionQuery(owner=house.owner))).items == ()

        assert caught.value.code is Code.SECRET_IN_VARIABLES
        assert caught.value.details == {"variables": ["key"]}
        assert value not in str(caught.value.body())


class TestTheGrant:
    """Without a grant of its own an agent has what the configuration allows, then and now."""

    async def test_it_comes_from_the_configuration(self, home: Path, tmp_path: Path) -> None:
        chat = Chat(allowed_commands=("make test",), allowed_domains=("example.com",))
        async with open_holdfast(config=Config(home=home, chat=chat)) as house:
            session = await opened(house, tmp_path, tools=["run_command"])

        assert session.agent.grant == Grant(commands=("make test",), domains=("example.com",))
        assert session.grant == session.agent.grant

    async def test_an_agent_with_its_own_keeps_it(self, quiet: Holdfast, tmp_path: Path) -> None:
        own = Grant(commands=("ls",))
        session = await opened(quiet, tmp_path, grant={"commands": ["ls"]})

        assert session.agent.grant == own

    async def test_a_wider_tier_than_the_agents_opens_no_session(
        self, quiet: Holdfast, tmp_path: Path
    ) -> None:
        context = SessionContext(working_dir=str(tmp_path), fs_scope_tier=FsTier.FULL)
        with pytest.raises(Denied) as caught:
            await quiet.open(request=SessionRequest(context=context))
        assert caught.value.code is Code.GRANT_EXCEEDED

    @demands("S0-185b")
    async def test_a_configuration_that_became_stricter_binds_open_sessions(
        self, home: Path, tmp_path: Path
    ) -> None:
        outside = tmp_path / "outside.txt"
        outside.write_text("out here\n")
        step = asks(call("read_file", path=str(outside)))
        config = a_config(home, step, says("one"), step, says("two"))
        wide = replace(config, chat=Chat(fs_scope=FsTier.FULL))
        desk = tmp_path / "desk"
        context = SessionContext(working_dir=str(desk), fs_scope_tier=FsTier.FULL)
        async with open_holdfast(config=wide) as house:
            session = await started(house, desk, context=context)
            await played(house, session.id)
        async with open_holdfast(config=config) as house:
            await house.send(session.id, "again")
            rows = await played(house, session.id)

        assert outcomes(rows) == ["read_file ok", "read_file denied/outside_scope"]

    @demands("S0-174")
    async def test_a_configuration_that_became_looser_does_not_widen_open_sessions(
        self, home: Path, tmp_path: Path
    ) -> None:
        outside = tmp_path / "outside.txt"
        outside.write_text("out here\n")
        config = a_config(home, asks(call("read_file", path=str(outside))), says("one"))
        wide = replace(config, chat=Chat(fs_scope=FsTier.FULL))
        desk = tmp_path / "desk"
        desk.mkdir()
        async with open_holdfast(config=config) as house:
            context = SessionContext(working_dir=str(desk))
            session = await house.open(request=SessionRequest(context=context))
        async with open_holdfast(config=wide) as house:
            await house.send(session.id, "look")
            rows = await played(house, session.id)

        assert outcomes(rows) == ["read_file denied/outside_scope"]


async def test_an_agent_that_is_changed_later_changes_no_open_session(
    home: Path, tmp_path: Path
) -> None:
    config = a_config(home, says("one"), asks(call("read_file", path="a")), says("two"))
    async with open_holdfast(config=config) as house:
        session = await started(house, tmp_path / "desk", agent="holdfast")
        await played(house, session.id)
        change = {"tools": [], "system_prompt": "Something else."}
        await house.agents.update(house.owner, "holdfast", change)
        await house.send(session.id, "look")
        rows = await played(house, session.id)
        after = await house.sessions.get(house.owner, session.id)

    assert after.agent == session.agent
    assert outcomes(rows) == ["read_file error/not_found"]
