"""Opening a session: what is frozen, what is refused, and what a repeated request gets."""

import stat
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from holdfast import RunScope, open_holdfast
from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.agents import (
    AcpRuntime,
    AgentOverrides,
    LlmRuntime,
    ModelChoice,
    Retry,
    override_agent,
)
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.errors import Code, Conflict, Denied, Invalid, NotFound
from holdfast.domain.events import SessionOpened
from holdfast.domain.ids import Owner
from holdfast.domain.models import model_of
from holdfast.domain.queries import SessionQuery
from holdfast.domain.sessions import Budget, Session, SessionContext, SessionRequest, Status
from holdfast.domain.tools import FsTier, Grant
from tests.builders import a_context, a_tool, an_agent, an_id
from tests.houses import current, news_until
from tests.marks import demands, each_case

pytestmark = pytest.mark.anyio

ID = an_id(70)
STRANGER = Owner("stranger")


@demands(
    "S0-004", "S0-003b", "S1-010d", "S1-100e", "S2-040b", "S2-040c", "S2-040d", "S2-121e", "S2-121c"
)
async def test_a_session_opens_pending_with_its_defaults(quiet: Holdfast, home: Path) -> None:
    agent = await quiet.agents.create(quiet.owner, {"name": "Helper"})

    session = await quiet.open("helper", id=ID)

    assert session == Session(
        id=session.id,
        owner=quiet.owner,
        agent_id=agent.id,
        agent=agent,
        context=session.context,
        last_event=1,
        created_at=agent.created_at,
        updated_at=agent.created_at + timedelta(microseconds=1),
    )
    assert await current(quiet, session) == session
    desk = Path(session.context.working_dir)
    assert session.context == a_context(working_dir=str(desk))
    assert (desk.name, desk.parent.parent) == (ID, home / "workspaces")


@demands("S0-115b", "S0-006e", "S2-040c", "S2-040d")
async def test_all_wishes_are_kept(quiet: Holdfast) -> None:
    tools = (a_tool("read_file"), a_tool("write_file"))
    grant = Grant(fs=FsTier.PROJECT, commands=("git", "make"), domains=("example.org",))
    await quiet.agents.create(quiet.owner, {"name": "Helper", "tools": tools, "grant": grant})
    narrower = Grant(commands=("git",))
    context = a_context(git_ref="main", variables={"ticket": "42"})

    session = await quiet.open(
        "helper",
        SessionRequest(
            title="Work",
            tags=("a", "b"),
            model="openai:one",
            context=context,
            grant=narrower,
            tools=("read_file",),
            approval=ApprovalMode.DENY,
            turn_cap=3,
            budget=Budget(microcents=5),
            metadata={"from": "test"},
        ),
    )

    stored = await current(quiet, session)
    assert (stored.title, stored.tags) == ("Work", ("a", "b"))
    assert stored.model_id == model_of("openai:one").id
    assert (stored.context, stored.grant) == (context, narrower)
    assert stored.tools == (a_tool("read_file"),)
    assert (stored.approval, stored.turn_cap) == (ApprovalMode.DENY, 3)
    assert (stored.budget, stored.metadata) == (Budget(microcents=5), {"from": "test"})


async def test_the_news_of_the_opening_name_agent_model_and_context(quiet: Holdfast) -> None:
    session = await quiet.open(request=SessionRequest(model="offline:holdfast"))

    (opened,) = await news_until(quiet, session.id, SessionOpened)

    assert opened.payload == SessionOpened(
        agent="holdfast", model="offline:holdfast", context=session.context
    )


@demands("S0-005", "S0-003b", "S1-010")
async def test_a_session_is_on_disk_when_open_returns(quiet: Holdfast, home: Path) -> None:
    session = await quiet.open()

    async with open_holdfast(home, scope=RunScope.NONE) as other:
        assert await current(other, session) == session


async def test_a_new_session_gets_a_folder_of_its_own_that_only_its_owner_reads(
    quiet: Holdfast,
) -> None:
    one, other = await quiet.open(), await quiet.open()

    assert one.context.working_dir != other.context.working_dir
    assert _mode_and_content(Path(one.context.working_dir)) == (0o700, [])


def _mode_and_content(folder: Path) -> tuple[int, list[Path]]:
    return stat.S_IMODE(folder.stat().st_mode), list(folder.iterdir())


@demands("S0-115b")
@each_case("cap", [None, 0, -1])
async def test_no_cap_and_zero_mean_fifty_turns(quiet: Holdfast, cap: int | None) -> None:
    session = await quiet.open(request=SessionRequest(turn_cap=cap))

    assert (await current(quiet, session)).turn_cap == 50


@demands("S2-040")
async def test_repeating_an_opening_returns_the_session_as_it_is_now(quiet: Holdfast) -> None:
    session = await quiet.open(request=SessionRequest(title="One"), id=ID)
    await quiet.send(session.id, "hello")

    again = await quiet.open(request=SessionRequest(title="One"), id=ID.upper())

    assert again == await current(quiet, session)
    assert again.message_count == 1


async def test_repeating_an_opening_after_a_restart_returns_the_session(
    home: Path, outside: Environment
) -> None:
    async with open_holdfast(home, scope=RunScope.NONE, outside=outside) as first:
        session = await first.open(id=ID)

    async with open_holdfast(home, scope=RunScope.NONE) as second:
        assert await second.open(id=ID) == session


@pytest.mark.parametrize(
    ("agent", "request_"),
    [("holdfast", SessionRequest(title="Other")), ("helper", SessionRequest())],
)
async def test_an_id_with_another_request_is_refused(
    quiet: Holdfast, agent: str, request_: SessionRequest
) -> None:
    await quiet.agents.create(quiet.owner, {"name": "Helper"})
    await quiet.open(id=ID)

    with pytest.raises(Conflict) as caught:
        await quiet.open(agent, request_, id=ID)

    assert caught.value.code is Code.ID_REUSED


@demands("S0-001b")
async def test_the_agent_is_frozen_when_the_session_opens(quiet: Holdfast) -> None:
    agent = await quiet.agents.create(quiet.owner, {"name": "Helper", "system_prompt": "Be terse."})
    session = await quiet.open("helper")

    await quiet.agents.update(quiet.owner, "helper", {"system_prompt": "Be long.", "slug": "new"})

    assert (await current(quiet, session)).agent == agent
    assert (await quiet.open("new")).agent.system_prompt == "Be long."


@demands("S0-009", "S0-174")
@each_case(
    ("request_", "details"),
    [
        (SessionRequest(tools=("read_file", "git_commit")), {"tools": ["git_commit"]}),
        (SessionRequest(grant=Grant(fs=FsTier.FULL)), {"fs": ["full"]}),
        (SessionRequest(grant=Grant(commands=("git", "rm"))), {"commands": ["rm"]}),
        (SessionRequest(grant=Grant(domains=("example.org",))), {"domains": ["example.org"]}),
        (SessionRequest(context=a_context(fs_scope_tier=FsTier.FULL)), {"fs": ["full"]}),
    ],
)
async def test_a_session_may_only_narrow_what_its_agent_may_do(
    quiet: Holdfast, request_: SessionRequest, details: dict[str, list[str]]
) -> None:
    grant = Grant(fs=FsTier.PROJECT, commands=("git",))
    fields = {"name": "Helper", "tools": (a_tool(),), "grant": grant}
    await quiet.agents.create(quiet.owner, fields)

    with pytest.raises(Denied) as caught:
        await quiet.open("helper", request_, id=ID)

    assert (caught.value.code, caught.value.details) == (Code.GRANT_EXCEEDED, details)
    with pytest.raises(NotFound):
        await quiet.sessions.get(quiet.owner, ID)


async def test_a_session_may_have_settings_of_its_own(quiet: Holdfast) -> None:
    runtime = LlmRuntime(temperature=1.0, max_tokens=5)
    await quiet.agents.create(
        quiet.owner, {"name": "Helper", "system_prompt": "Help {{ctx.who}}.", "runtime": runtime}
    )
    wanted = AgentOverrides(
        temperature=0.0, retry=Retry(max=3), system_prompt_append="Greet {{ctx.who}}."
    )
    context = SessionContext(working_dir="/", variables={"who": "Ann"})

    request = SessionRequest(overrides=wanted, context=context)
    session = await quiet.open("helper", request)

    assert session.agent.runtime == replace(runtime, temperature=0.0, retry=Retry(max=3))
    assert session.agent.system_prompt == "Help Ann.\n\nGreet Ann."
    known = await quiet.agents.get(quiet.owner, "helper")
    assert (known.runtime, known.system_prompt) == (runtime, "Help {{ctx.who}}.")


@each_case(
    ("overrides", "code"),
    [
        (AgentOverrides(temperature=3.0), Code.AGENT_INVALID),
        (AgentOverrides(max_tokens=0), Code.AGENT_INVALID),
        (AgentOverrides(system_prompt_append="{{secrets.key}}"), Code.SECRET_INTERPOLATION),
    ],
)
async def test_settings_that_no_agent_may_have_open_no_session(
    quiet: Holdfast, overrides: AgentOverrides, code: Code
) -> None:
    with pytest.raises(Invalid) as refused:
        await quiet.open("holdfast", SessionRequest(overrides=overrides))

    assert refused.value.code is code
    assert (await quiet.sessions.list(SessionQuery(owner=quiet.owner))).items == ()


async def test_a_program_has_no_settings_of_ours(quiet: Holdfast) -> None:
    agent = an_agent(runtime=AcpRuntime(command="x"))

    assert override_agent(agent, AgentOverrides()) == agent
    with pytest.raises(Invalid, match="is a program that chooses its own model settings"):
        override_agent(agent, AgentOverrides(temperature=1.0))


def test_a_retry_rule_of_a_session_is_held_to_the_same_names() -> None:
    retry = Retry(max=2, retry_on=("timeout",))

    with pytest.raises(Invalid, match=r"retry\.retry_on may name rate_limit, unavailable"):
        SessionRequest(overrides=AgentOverrides(retry=retry))


@demands("S0-009")
async def test_without_wishes_a_session_inherits_tools_commands_and_domains(
    quiet: Holdfast,
) -> None:
    tools = (a_tool("read_file"), a_tool("write_file"))
    grant = Grant(fs=FsTier.PROJECT, commands=("git",), domains=("example.org",))
    await quiet.agents.create(quiet.owner, {"name": "Helper", "tools": tools, "grant": grant})

    session = await quiet.open("helper")
    without = await quiet.open("helper", SessionRequest(tools=()))

    assert session.tools == tools
    assert session.grant == msgspec.structs.replace(grant, fs=FsTier.SANDBOXED)
    assert without.tools == ()


async def test_a_repository_gives_the_session_its_workspace(
    quiet: Holdfast, tmp_path: Path
) -> None:
    tree = tmp_path / "project"
    (tree / ".git").mkdir(parents=True)
    repo = await quiet.repos.add(quiet.owner, str(tree), at_terminal=True)

    session = await quiet.open(request=SessionRequest(repo_id=repo.id))

    assert (session.repo_id, session.context) == (repo.id, a_context(working_dir=str(tree)))
    assert await current(quiet, session) == session


@demands("S1-042", "S1-042c")
async def test_an_unknown_repository_is_not_found(quiet: Holdfast) -> None:
    with pytest.raises(NotFound) as caught:
        await quiet.open(request=SessionRequest(repo_id=an_id(71)))

    assert caught.value.code is Code.REPO_NOT_FOUND


async def test_the_chain_of_models_is_frozen_with_the_agent(quiet: Holdfast) -> None:
    models = ("openai:one", "openai:two")
    await quiet.agents.create(quiet.owner, {"name": "Helper", "models": models})
    session = await quiet.open("helper")

    await quiet.agents.update(quiet.owner, "helper", {"models": ["openai:three"]})

    chain = tuple(ModelChoice(model_id=model_of(ref).id) for ref in models)
    assert (await current(quiet, session)).agent.runtime == LlmRuntime(models=chain)


async def test_a_new_session_is_listed_and_can_be_resumed(quiet: Holdfast) -> None:
    session = await quiet.open()

    resumed = await quiet.sessions.resume(quiet.owner, session.id)

    assert resumed.session.status is Status.PENDING
