"""Grants only become narrower."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.errors import Code, Denied, Invalid
from holdfast.domain.tools import (
    NARROWEST,
    FsTier,
    Grant,
    ToolSpec,
    narrow,
    narrow_tools,
    narrowest_tier,
    remote_id,
)
from tests.builders import a_tool
from tests.marks import each_case

WIDTH = [FsTier.SANDBOXED, FsTier.PROJECT, FsTier.FULL]
NAMES = st.lists(st.sampled_from(["git", "ls", "make", "a.org"]), max_size=4).map(tuple)
GRANTS = st.builds(
    Grant, fs=st.sampled_from(FsTier), commands=NAMES, command_globs=NAMES, domains=NAMES
)
TOOLS = st.lists(st.sampled_from("abcd"), unique=True).map(
    lambda names: tuple(a_tool(name) for name in names)
)


def is_at_most(one: Grant, other: Grant) -> bool:
    return (
        WIDTH.index(one.fs) <= WIDTH.index(other.fs)
        and set(one.commands) <= set(other.commands)
        and set(one.command_globs) <= set(other.command_globs)
        and set(one.domains) <= set(other.domains)
    )


@given(GRANTS, GRANTS)
def test_a_grant_is_narrowed_to_exactly_what_was_asked_or_refused(
    granted: Grant, wanted: Grant
) -> None:
    if is_at_most(wanted, granted):
        assert narrow(granted, wanted) == wanted
    else:
        with pytest.raises(Denied):
            narrow(granted, wanted)


@given(GRANTS)
def test_a_grant_may_be_kept_whole_or_given_up_whole(granted: Grant) -> None:
    assert narrow(granted, granted) == granted
    assert narrow(granted, NARROWEST) == Grant(fs=FsTier.SANDBOXED, commands=(), domains=())


@given(GRANTS, GRANTS, GRANTS)
def test_what_was_narrowed_twice_lies_within_the_first_grant(
    first: Grant, second: Grant, third: Grant
) -> None:
    try:
        narrowed = narrow(narrow(first, second), third)
    except Denied:
        return

    assert narrow(first, narrowed) == narrowed


@given(st.lists(GRANTS))
def test_a_tier_is_as_narrow_as_the_narrowest_grant_and_nobodys_is_the_narrowest(
    grants: list[Grant],
) -> None:
    widths = [WIDTH.index(grant.fs) for grant in grants]

    assert narrowest_tier(grants) is WIDTH[min(widths, default=0)]


def test_a_refusal_names_all_that_is_wider_and_nothing_else() -> None:
    granted = Grant(fs=FsTier.PROJECT, commands=("git",), domains=("a.org",))
    wanted = Grant(fs=FsTier.FULL, commands=("rm", "git", "cat"), domains=("a.org",))

    with pytest.raises(Denied) as refused:
        narrow(granted, wanted)

    assert refused.value.body() == {
        "error": Code.GRANT_EXCEEDED,
        "message": "A session may only restrict its agent's grant; it is wider here: fs, commands.",
        "details": {"fs": ["full"], "commands": ["cat", "rm"]},
    }


def test_a_command_is_compared_whole() -> None:
    with pytest.raises(Denied) as refused:
        narrow(Grant(commands=("git",)), Grant(commands=("git push",)))

    assert refused.value.details == {"commands": ["git push"]}


@given(TOOLS)
def test_a_session_that_says_nothing_keeps_all_tools(granted: tuple[ToolSpec, ...]) -> None:
    assert narrow_tools(granted, None) == granted


@given(TOOLS)
def test_a_session_that_asks_for_no_tool_has_none(granted: tuple[ToolSpec, ...]) -> None:
    assert narrow_tools(granted, ()) == ()


@given(TOOLS, st.lists(st.sampled_from("abcd"), max_size=6).map(tuple))
def test_a_session_gets_the_tools_it_names_or_is_refused(
    granted: tuple[ToolSpec, ...], wanted: tuple[str, ...]
) -> None:
    names = [tool.name for tool in granted]
    if set(wanted) <= set(names):
        narrowed = narrow_tools(granted, wanted)
        assert [tool.name for tool in narrowed] == [name for name in names if name in wanted]
    else:
        with pytest.raises(Denied) as refused:
            narrow_tools(granted, wanted)
        assert refused.value.details == {"tools": sorted(set(wanted) - set(names))}


def test_a_tool_the_agent_lacks_is_named() -> None:
    with pytest.raises(Denied) as refused:
        narrow_tools((a_tool("read_file"),), ("write_file", "read_file", "git_commit"))

    assert refused.value.body() == {
        "error": Code.GRANT_EXCEEDED,
        "message": "The agent does not have these tools: git_commit, write_file.",
        "details": {"tools": ["git_commit", "write_file"]},
    }


@each_case("name", ["", " \n"])
def test_a_tool_needs_a_name(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        a_tool(name)

    assert refused.value.body() == {
        "error": Code.AGENT_INVALID,
        "message": "A tool needs a name.",
        "details": {"field": "tools.name"},
    }


@each_case(
    ("server", "tool", "id"),
    [
        ("notes", "read", "mcp_notes_read"),
        ("my.notes", "read file", "mcp_my_notes_read_file"),
        ("notes", "", "mcp_notes_"),
    ],
)
def test_the_id_of_a_servers_tool_begins_with_its_server(server: str, tool: str, id: str) -> None:
    assert remote_id(server, tool) == id
