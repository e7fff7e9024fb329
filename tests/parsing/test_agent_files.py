"""Agent files: what they say, what is refused with which place, and how they are written."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.domain.agents import (
    AcpRuntime,
    LlmRuntime,
    Memory,
    ModelChoice,
    ReasoningEffort,
    Recovery,
    Retry,
    file_form,
)
from holdfast.domain.errors import HoldfastError, Invalid, NotFound
from holdfast.domain.models import model_of
from holdfast.domain.secrets import Scrubber, Secret
from holdfast.domain.tools import ToolSpec
from holdfast.parsing.agent_files import (
    AgentFile,
    FileModel,
    build_agent,
    find_agent_file,
    parse_agent,
    read_agent_file,
)
from holdfast.parsing.yaml import LARGEST, write_yaml
from tests.builders import an_agent
from tests.marks import each_case

LEAST = "id: reviewer\nmodel: gpt-5\nprovider: openai\nsystem_prompt: Review.\n"
WHOLE = """\
id: reviewer
name: The reviewer
description: Reads what others wrote.
model: gpt-5
provider: openai
system_prompt: |
  Review {{ctx.repo}}.
temperature: 1
max_tokens: 4096
reasoning_effort: high
tools: [read_file, web_search, mcp_github_issues]
mcp_servers:
  - ref: github
    tools_allowlist: [issues]
  - id: notes
    transport: stdio
    command: npx
    args: ["-y", notes]
    env:
      MODE: fast
      NOTES_TOKEN: {secret: true, ref: notes}
  - {id: web, transport: http, url: "https://example.com/mcp", allow_local_endpoint: true}
fallback_chain:
  - {model: "claude:5", provider: anthropic, max_attempts: 3}
retry: {max: 4, backoff: linear, backoff_ms: 200, retry_on: [rate_limit]}
memory: {type: window, window_size: 20}
recovery: continue
input_schema: {type: object, properties: {token: {type: string}}}
output_schema: {}
"""
SERVERS: tuple[dict[str, Any], ...] = (
    {"ref": "github", "tools_allowlist": ["issues"]},
    {
        "id": "notes",
        "transport": "stdio",
        "command": "npx",
        "args": ["-y", "notes"],
        "env": {"MODE": "fast", "NOTES_TOKEN": {"secret": True, "ref": "notes"}},
    },
    {
        "id": "web",
        "transport": "http",
        "url": "https://example.com/mcp",
        "allow_local_endpoint": True,
    },
)
DESCRIBED = AgentFile(
    slug="reviewer",
    name="The reviewer",
    description="Reads what others wrote.",
    system_prompt="Review {{ctx.repo}}.\n",
    models=(
        FileModel(ref="openai:gpt-5"),
        FileModel(ref="anthropic:claude:5", max_attempts=3),
    ),
    runtime=LlmRuntime(
        models=(
            ModelChoice(model_id=model_of("openai:gpt-5").id),
            ModelChoice(model_id=model_of("anthropic:claude:5").id, max_attempts=3),
        ),
        temperature=1.0,
        max_tokens=4096,
        reasoning_effort=ReasoningEffort.HIGH,
        retry=Retry(max=4, backoff="linear", backoff_ms=200, retry_on=("rate_limit",)),
        memory=Memory(type="window", window_size=20),
    ),
    tools=("read_file", "web_search", "mcp_github_issues"),
    mcp_servers=SERVERS,
    recovery=Recovery.CONTINUE,
    extra={
        "input_schema": {"type": "object", "properties": {"token": {"type": "string"}}},
        "output_schema": {},
    },
)


def refused(text: str) -> dict[str, Any]:
    """Return the body of the error that a text is refused with."""
    with pytest.raises(Invalid) as caught:
        parse_agent(text, where="a.agent.yaml")
    return caught.value.body()


def test_a_file_says_everything_about_an_agent_but_what_it_may_reach() -> None:
    assert parse_agent(WHOLE, where="a.agent.yaml") == DESCRIBED


def test_a_file_needs_four_keys() -> None:
    assert parse_agent(LEAST, where="a.agent.yaml") == AgentFile(
        slug="reviewer",
        name="reviewer",
        system_prompt="Review.",
        models=(FileModel(ref="openai:gpt-5"),),
        runtime=LlmRuntime(models=(ModelChoice(model_id=model_of("openai:gpt-5").id),)),
    )


def test_an_agent_inside_of_another_file_is_held_to_the_same_rules() -> None:
    entry = {"id": "a", "model": "m", "provider": "p", "system_prompt": "x"}

    assert build_agent(entry, where="flow.yaml, agents[0]").slug == "a"
    with pytest.raises(Invalid) as caught:
        build_agent({**entry, "color": "red"}, where="flow.yaml, agents[0]")

    assert caught.value.body() == {
        "error": "agent_invalid",
        "message": "flow.yaml, agents[0] is not a valid agent: color: unknown key.",
        "details": {"file": "flow.yaml, agents[0]", "fields": ["color"]},
    }


@each_case(
    ("text", "message", "line", "column"),
    [
        ("id: [", "a.agent.yaml, line 1, column 6: this is not valid YAML.", 1, 6),
        (
            "id: a\nid: b",
            "a.agent.yaml, line 2, column 1: a repeated key in a mapping cannot be used "
            "in Holdfast's YAML files.",
            2,
            1,
        ),
        (
            "id: &a [*a]",
            "a.agent.yaml, line 1, column 5: anchors cannot be used in Holdfast's YAML files.",
            1,
            5,
        ),
        (
            "[" * 70 + "]" * 70,
            "a.agent.yaml, line 1, column 65: more than 64 levels.",
            1,
            65,
        ),
        ("x" * (LARGEST + 1), "a.agent.yaml: the file is larger than 2 MiB.", 0, 0),
    ],
)
def test_what_is_no_yaml_of_ours_is_refused_with_its_place(
    text: str, message: str, line: int, column: int
) -> None:
    assert refused(text) == {
        "error": "agent_syntax",
        "message": message,
        "details": {"file": "a.agent.yaml", "line": line, "column": column},
    }


@each_case(
    ("change", "fields"),
    [
        ({"id": None}, ["id"]),
        ({"id": "a b"}, ["id"]),
        ({"id": "a\n"}, ["id"]),
        ({"id": 7}, ["id"]),
        ({"name": None}, ["name"]),
        ({"name": "x" * 256}, ["name"]),
        ({"description": "x" * 10_241}, ["description"]),
        ({"model": ""}, ["model"]),
        ({"provider": "a:b"}, ["provider"]),
        ({"system_prompt": ""}, ["system_prompt"]),
        ({"system_prompt": "ä" * (128 << 10) + "x"}, ["system_prompt"]),
        ({"system_prompt": "a\x00b"}, ["system_prompt"]),
        ({"input_schema": {"x": ["\ud800"]}}, ["input_schema.x[0]"]),
        ({"temperature": 2.1}, ["temperature"]),
        ({"temperature": float("nan")}, ["temperature"]),
        ({"temperature": True}, ["temperature"]),
        ({"max_tokens": 0}, ["max_tokens"]),
        ({"max_tokens": True}, ["max_tokens"]),
        ({"reasoning_effort": "more"}, ["reasoning_effort"]),
        ({"tools": "read_file"}, ["tools"]),
        ({"tools": ["a", ""]}, ["tools[1]"]),
        ({"tools": ["a", "b", "a"]}, ["tools[2]"]),
        ({"tools": [str(number) for number in range(129)]}, ["tools"]),
        ({"fallback_chain": [{"model": "m", "provider": "p"}]}, ["fallback_chain[0].max_attempts"]),
        ({"retry": {"max": 1}}, ["retry.backoff"]),
        ({"retry": {"max": 1, "backoff": "square"}}, ["retry.backoff"]),
        ({"retry": {"max": 1, "backoff": "linear", "retry_on": []}}, ["retry.retry_on"]),
        (
            {"retry": {"max": 1, "backoff": "linear", "retry_on": ["unavailable", "timeout"]}},
            ["retry.retry_on[1]"],
        ),
        ({"memory": {"type": "all"}}, ["memory.type"]),
        ({"memory": {"type": "window"}}, ["memory.window_size"]),
        ({"memory": {"type": "none", "window_size": 3}}, ["memory.window_size"]),
        ({"recovery": "perhaps"}, ["recovery"]),
        ({"input_schema": []}, ["input_schema"]),
        ({"grant": {"fs": "full"}}, ["grant"]),
        ({"api_key": "x"}, ["api_key"]),
        ({"mcp_servers": [3]}, ["mcp_servers[0]"]),
        ({"mcp_servers": [{"ref": "a"}, {"ref": "a"}]}, ["mcp_servers[1]"]),
        (
            {"mcp_servers": [{"ref": "a", "tools_allowlist": []}]},
            ["mcp_servers[0].tools_allowlist"],
        ),
        ({"mcp_servers": [{"ref": "a", "id": "b"}]}, ["mcp_servers[0].id"]),
        ({"mcp_servers": [{"id": "a", "transport": "carrier"}]}, ["mcp_servers[0].transport"]),
        (
            {"mcp_servers": [{"id": "a", "transport": "stdio", "command": "c", "url": "u"}]},
            ["mcp_servers[0].url"],
        ),
        (
            {"mcp_servers": [{"id": "a", "transport": "sse", "url": "https://h", "args": []}]},
            ["mcp_servers[0].args"],
        ),
        (
            {"mcp_servers": [{"id": "a", "transport": "http", "url": "wss://h"}]},
            ["mcp_servers[0].url"],
        ),
        (
            {"mcp_servers": [{"id": "a", "transport": "sse", "url": "https://me@h"}]},
            ["mcp_servers[0].url"],
        ),
        (
            {"mcp_servers": [{"id": "a", "transport": "http", "url": "https://[h"}]},
            ["mcp_servers[0].url"],
        ),
        (
            {
                "mcp_servers": [
                    {
                        "id": "a",
                        "transport": "stdio",
                        "command": "c",
                        "env": {"X": {"secret": False, "ref": "x"}},
                    }
                ]
            },
            ["mcp_servers[0].env.X.secret"],
        ),
        ({"color": 1, "id": 2, "tools": 3, "memory": 4}, ["color", "id", "tools", "memory"]),
    ],
)
def test_a_broken_rule_is_named_by_its_path(change: dict[str, Any], fields: list[str]) -> None:
    raw = {"id": "a", "model": "m", "provider": "p", "system_prompt": "x", **change}

    with pytest.raises(Invalid) as caught:
        build_agent(raw, where="a.agent.yaml")

    body = caught.value.body()
    assert (body["error"], body["details"]) == (
        "agent_invalid",
        {"file": "a.agent.yaml", "fields": fields},
    )


def test_what_is_no_mapping_is_no_agent() -> None:
    assert refused("- a")["details"] == {"file": "a.agent.yaml", "fields": [""]}
    assert refused("")["error"] == "agent_invalid"


def test_a_missing_key_is_told() -> None:
    assert refused("id: a")["message"] == (
        "a.agent.yaml is not a valid agent: model: it is missing; provider: it is missing; "
        "system_prompt: it is missing."
    )


def test_an_error_never_quotes_a_value() -> None:
    values = ("surprising", "unexpected", "astonishing")
    text = (
        f"{LEAST}reasoning_effort: surprising\nrecovery: unexpected\n"
        "retry: {max: 1, backoff: astonishing}\n"
    )

    told = msgspec.json.encode(refused(text)).decode()

    assert not [value for value in values if value in told]


@each_case(
    ("text", "fields"),
    [
        (f"{LEAST}description: ghp_abcdefghij0123456789", ["description"]),
        (f"{LEAST}tools: [x, AKIAIOSFODNN7EXAMPLE]", ["tools[1]"]),
        (f"{LEAST}api_key: abcd1234", ["api_key"]),
        (
            f"{LEAST}mcp_servers:\n"
            "  - {id: a, transport: stdio, command: c, env: {API_KEY: ab12cd34}}",
            ["mcp_servers[0].env.API_KEY"],
        ),
        (
            f"{LEAST}mcp_servers: [{{id: a, transport: http, url: 'https://me:pass@h/'}}]",
            ["mcp_servers[0].url"],
        ),
        (f"{LEAST}input_schema: {{ghp_abcdefghij0123456789: {{x: 1}}}}", ["input_schema.[masked]"]),
        (f"{LEAST}description: the managed-value-1 is here", ["description"]),
        (f"{LEAST}input_schema: {{managed-value-1: 1}}", ["input_schema.[secret:mine]"]),
    ],
)
def test_a_secret_is_refused_by_its_path_alone(text: str, fields: list[str]) -> None:
    scrubber = Scrubber([("mine", Secret("managed-value-1"))])

    with pytest.raises(Invalid) as caught:
        parse_agent(text, where="a.agent.yaml", scrubber=scrubber)

    assert caught.value.body() == {
        "error": "secret_in_file",
        "message": f"a.agent.yaml seems to contain a secret at {fields[0]}; store it in the "
        "keychain (`holdfast key set`), and remove it from the file.",
        "details": {"file": "a.agent.yaml", "fields": fields},
    }


def test_a_prompt_cannot_ask_for_a_secret() -> None:
    assert refused(LEAST.replace("Review.", "'{{secrets.openai}}'")) == {
        "error": "secret_interpolation",
        "message": "A prompt must not contain a secret; remove {{secrets.…}} from a.agent.yaml.",
        "details": {"file": "a.agent.yaml", "field": "system_prompt"},
    }


def test_a_file_is_read_from_the_disk(tmp_path: Path) -> None:
    file = tmp_path / "a.agent.yaml"
    file.write_text(WHOLE)

    assert read_agent_file(file) == DESCRIBED


@each_case(
    ("content", "kind", "message"),
    [
        (None, NotFound, "There is no file {file}."),
        (b"\xff", Invalid, "{file}: it is not UTF-8 at byte 1."),
        (b"x" * (LARGEST + 1), Invalid, "{file}: it is larger than 2097152 bytes."),
    ],
)
def test_a_file_that_cannot_be_read_is_told(
    tmp_path: Path, content: bytes | None, kind: type[HoldfastError], message: str
) -> None:
    file = tmp_path / "a.agent.yaml"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(kind) as caught:
        read_agent_file(file)

    assert caught.value.message == message.format(file=file)


def test_a_bare_id_is_looked_for_in_the_workspace_and_then_in_the_home(tmp_path: Path) -> None:
    work, home = tmp_path / "work", tmp_path / "home"
    near, far = work / ".holdfast" / "agents", home / "agents"
    near.mkdir(parents=True)
    far.mkdir(parents=True)
    (near / "both.agent.yaml").touch()
    (far / "both.agent.yaml").touch()
    (far / "far.agent.yaml").touch()
    (near / "folder.agent.yaml").mkdir()

    def found(ref: str) -> Path | None:
        return find_agent_file(ref, working_dir=work, home=home)

    assert found("both") == near / "both.agent.yaml"
    assert found("far") == far / "far.agent.yaml"
    # All these are stored agents, or nothing: no file is meant.
    assert [found(ref) for ref in ("other", "folder", "not a slug", "x" * 255)] == [None] * 4


@each_case("ref", ["a.yaml", "a.yml", "./a", "agents/a", "missing.agent.yaml"])
def test_a_separator_or_an_ending_makes_a_reference_a_path(tmp_path: Path, ref: str) -> None:
    assert find_agent_file(ref, working_dir=tmp_path, home=tmp_path) == tmp_path / ref


def test_an_absolute_path_stays_one(tmp_path: Path) -> None:
    file = str(tmp_path / "a.agent.yaml")

    assert find_agent_file(file, working_dir=Path("/elsewhere"), home=tmp_path) == Path(file)


def test_an_agent_is_written_as_its_file_says_it() -> None:
    agent = an_agent(
        slug="reviewer",
        name="The reviewer",
        description="Reads what others wrote.",
        system_prompt=DESCRIBED.system_prompt,
        runtime=DESCRIBED.runtime,
        tools=tuple(ToolSpec(name=name) for name in DESCRIBED.tools),
        mcp_servers=SERVERS,
        recovery=Recovery.CONTINUE,
        extra=DESCRIBED.extra | {"other": 1},
        tags=("not in a file",),
    )
    refs = {model_of(model.ref).id: model.ref for model in DESCRIBED.models}

    text = write_yaml(file_form(agent, refs, default="offline:holdfast"))

    assert parse_agent(text, where="a.agent.yaml") == DESCRIBED
    assert text.startswith("description: Reads what others wrote.\nfallback_chain:\n  - max_att")


def test_what_an_agent_leaves_open_is_written_with_the_default() -> None:
    first, second = model_of("openai:gpt-5"), model_of("anthropic:claude")
    chain = LlmRuntime(
        models=(ModelChoice(model_id=first.id), ModelChoice(model_id=second.id)),
        memory=Memory(type="summary"),
    )
    plain = an_agent(slug="a", name="A", system_prompt="x", runtime=LlmRuntime())

    assert file_form(plain, {}, default="offline:holdfast") == {
        "id": "a",
        "name": "A",
        "model": "holdfast",
        "provider": "offline",
        "system_prompt": "x",
        "recovery": "stop",
    }
    chained = file_form(
        msgspec.structs.replace(plain, runtime=chain),
        {first.id: first.ref, second.id: second.ref},
        default="offline:holdfast",
    )
    assert chained["fallback_chain"] == [
        {"model": "claude", "provider": "anthropic", "max_attempts": 2}
    ]
    assert chained["memory"] == {"type": "summary"}


def test_an_agent_with_a_program_of_its_own_has_no_file() -> None:
    with pytest.raises(Invalid) as caught:
        file_form(an_agent(runtime=AcpRuntime(command="codex")), {}, default="offline:holdfast")

    assert caught.value.details == {"fields": ["runtime"]}
