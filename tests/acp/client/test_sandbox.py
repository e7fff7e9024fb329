"""The sandbox of an agent's program: what it can write and read, and where it says so."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.acp.client import agent_command
from holdfast.acp.client.presets import PRESETS
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.messages import Message, Role
from holdfast.domain.sessions import SessionRequest
from holdfast.process.launcher import Launcher
from holdfast.process.sandbox import Means, Namespaces
from tests.acp.harness import Aboard, aboard
from tests.acp.steps import does, prompt, runs
from tests.marks import demands
from tests.tools.process_fixture import known_means

pytestmark = pytest.mark.anyio

# Answers each prompt, a JSON object of names and Python expressions, with what each evaluates to.
PROGRAM = """
import json, os, socket, subprocess, sys
from pathlib import Path

def attempt(expression):
    try:
        return eval(expression)
    except OSError as error:
        return type(error).__name__

for line in sys.stdin:
    asked = json.loads(line)
    method, params, result = asked.get("method"), asked.get("params") or {}, {}
    if method == "initialize":
        result = {"protocolVersion": 1}
    elif method == "session/new":
        result = {"sessionId": "s"}
    elif method == "session/prompt":
        wanted = json.loads(params["prompt"][-1]["text"])
        found = {name: attempt(each) for name, each in wanted.items()}
        update = {"sessionUpdate": "agent_message_chunk",
                  "content": {"type": "text", "text": json.dumps(found)}}
        print(json.dumps({"jsonrpc": "2.0", "method": "session/update",
                          "params": {"sessionId": "s", "update": update}}))
        result = {"stopReason": "end_turn"}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
SECRET = "canary-4711"
# What belongs to tools in a home.
TOOLS = {
    ".gitconfig": "[user]\n\tname = a\n",
    ".nvm/node": "tool",
    ".config/git/credentials": SECRET,
}
SHARED = Path(tempfile.gettempdir()) / "holdfast-test-sandbox"


def git(*words: str) -> None:
    """Run git as a user would."""
    subprocess.run(["git", *words], check=True)


def writes(path: Path | str) -> str:
    """Return an expression that appends to a file."""
    return f"open({str(path)!r}, 'a').write('x')"


def reads(path: Path | str) -> str:
    """Return an expression that reads a file."""
    return f"open({str(path)!r}).read()"


@pytest.fixture
def home() -> Iterator[Path]:
    """Be the home of a user, with a secret, a document and the data of an agent.

    It is not in a shared temporary folder, because programs have one of their own there.
    """
    with tempfile.TemporaryDirectory(prefix=".holdfast-test-", dir=Path.home()) as folder:
        found = Path(folder).resolve()
        for name in (".ssh/id_ed25519", "document.txt", ".gemini/settings.json", ".bashrc"):
            (found / name).parent.mkdir(exist_ok=True)
            (found / name).write_text(SECRET)
        for name, text in TOOLS.items():
            (found / name).parent.mkdir(exist_ok=True, parents=True)
            (found / name).write_text(text)
        yield found


async def answers(
    ship: Aboard, home: Path, wanted: Mapping[str, str], **options: Any
) -> tuple[dict[str, Any], str]:
    """Have the program evaluate expressions; return the values, and how it is confined."""
    program = ship.tree.parent / "program/program.py"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    given = {"environment": {"HOME": str(home)}, **options}
    runtime = AcpRuntime(command=sys.executable, args=(str(program),), options=given)
    await ship.house.agents.create(
        ship.house.owner, {"name": "A", "slug": "a", "runtime": runtime, "grant": None}
    )
    session = await ship.house.open("a", SessionRequest(repo_id=ship.repo.id))
    rows: tuple[Message, ...] = await ship.tell(session, json.dumps(wanted))
    now = await ship.now(session)
    assert now.program is not None, rows
    (said,) = (row.text for row in rows if row.role is Role.ASSISTANT)
    found: dict[str, Any] = json.loads(said)
    return found, now.program.about["sandbox"]


def use_means(monkeypatch: pytest.MonkeyPatch, means: Means) -> None:
    """Start every program as on a system with only these means."""

    async def found(_: Launcher) -> Means:
        return means

    monkeypatch.setattr(Launcher, "means", found)


@pytest.fixture(params=["all means", "users' namespaces"])
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Means:
    """Be a system with all means that this one has, as root and as a user."""
    found = known_means()
    if request.param == "users' namespaces" and found.namespaces is Namespaces.ROOT:
        found = Means(
            namespaces=Namespaces.USER,
            mounts=True,
            network=True,
            landlock=found.landlock,
            seccomp=found.seccomp,
        )
    use_means(monkeypatch, found)
    return found


@demands("S1-048", "S1-048b")
async def test_a_program_writes_only_in_its_repository_its_scratch_and_its_own_folders(
    tmp_path: Path, home: Path, means: Means
) -> None:
    if not means.mounts:
        return
    async with aboard(tmp_path) as ship:
        git("init", "-q", str(ship.tree))
        (ship.tree / "Makefile").write_text("all:\n")
        wanted = {
            "repository": writes(ship.tree / "new.txt"),
            "what runs later": writes(ship.tree / "Makefile"),
            "hook": writes(ship.tree / ".git/hooks/pre-commit"),
            "git settings": writes(ship.tree / ".git/config"),
            "git itself": "subprocess.run(['git', 'add', 'new.txt']).returncode",
            "scratch": "open(os.environ['TMPDIR'] + '/t', 'w').write('x')",
            "shared folder": writes(SHARED),
            "own settings": writes(home / ".gemini/settings.json"),
            "added": writes(tmp_path / "added/file"),
            "home": writes(home / "document.txt"),
            "new in home": writes(home / "new.txt"),
            "start file": writes(home / ".bashrc"),
            "beside": writes(home.parent / f"{home.name}-beside"),
            "system": writes("/etc/holdfast-test"),
        }
        (tmp_path / "added").mkdir()
        options = {"preset": "gemini", "writable": [str(tmp_path / "added")]}
        found, told = await answers(ship, home, wanted, **options)

    refused = ("OSError", "PermissionError", "FileNotFoundError")
    allowed = {name for name, value in found.items() if value not in refused}
    assert allowed == {
        *("repository", "what runs later", "git itself", "scratch", "shared folder"),
        *("own settings", "added"),
    }, found
    assert found["git itself"] == 0
    assert told == "confined"
    assert (ship.tree / "new.txt").read_text() == "x"
    assert not SHARED.exists()
    assert (home / ".gemini/settings.json").read_text() == f"{SECRET}x"


@demands("S1-048", "S1-048b")
async def test_a_program_reads_its_repository_the_system_and_its_own_and_no_secret(
    tmp_path: Path, home: Path, means: Means
) -> None:
    if not means.mounts:
        return
    async with aboard(tmp_path) as ship:
        (ship.tree / ".env").write_text(SECRET)
        (ship.tree / "src").mkdir()
        (ship.tree / ".github").mkdir()
        (ship.tree / ".github/.env").write_text(SECRET)
        (ship.tree / "src/readme.txt").write_text("plain")
        wanted = {
            "repository": reads(ship.tree / "src/readme.txt"),
            "system": "'root' in open('/etc/passwd').read()",
            "own settings": reads(home / ".gemini/settings.json"),
            "git settings": reads(home / ".gitconfig"),
            "toolchain": reads(home / ".nvm/node"),
            "document": reads(home / "document.txt"),
            "start file": reads(home / ".bashrc"),
            "credentials beside tools": reads(home / ".config/git/credentials"),
            "beside the repository": reads(tmp_path / "beside.txt"),
            "home": f"os.listdir({str(home)!r})",
            ".env": reads(ship.tree / ".env"),
            "inner .env": reads(ship.tree / ".github/.env"),
            "by another name": "open('/proc/self/cwd/.env').read()",
            "of the parent": "open(f'/proc/{os.getppid()}/root' + os.getcwd() + '/.env').read()",
            "key": reads(home / ".ssh/id_ed25519"),
            "our own home": f"os.listdir({str(tmp_path / 'home')!r})",
        }
        (tmp_path / "beside.txt").write_text(SECRET)
        found, told = await answers(ship, home, wanted, preset="gemini")

    assert told == "confined"
    allowed = {name: found.pop(name) for name in ("repository", "system", "own settings")}
    assert allowed == {"repository": "plain", "system": True, "own settings": SECRET}
    assert (found.pop("toolchain"), found.pop("git settings")) == ("tool", TOOLS[".gitconfig"])
    assert SECRET not in json.dumps(found)
    for name in ("document", "start file", "beside the repository", "home"):
        assert found[name] in ("PermissionError", "FileNotFoundError"), name
    assert set(found["our own home"]) <= {"workspaces"}


async def test_a_user_opens_what_is_closed_for_one_agent(
    tmp_path: Path, home: Path, means: Means
) -> None:
    if not means.mounts:
        return
    async with aboard(tmp_path) as ship:
        wanted = {
            "key": reads(home / ".ssh/id_ed25519"),
            "network": "socket.create_connection(('127.0.0.1', 1), 1)",
        }
        found, _ = await answers(ship, home, wanted, readable=["~/.ssh"], network=False)

    assert found == {"key": SECRET, "network": "ConnectionRefusedError"}


async def test_an_agent_that_is_not_confined_says_so(tmp_path: Path, home: Path) -> None:
    async with aboard(tmp_path) as ship:
        wanted = {"home": writes(home / "document.txt")}
        found, told = await answers(ship, home, wanted, confined=False)

    assert found == {"home": 1}
    assert told == "not confined: its option confined is false"


async def test_without_namespaces_a_program_starts_and_writes_only_in_its_folders(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landlock = known_means().landlock
    if not landlock:
        return
    use_means(monkeypatch, Means(landlock=landlock))
    async with aboard(tmp_path) as ship:
        wanted = {
            "repository": writes(ship.tree / "new.txt"),
            "scratch": "open(os.environ['TMPDIR'] + '/t', 'w').write('x')",
            "home": writes(home / "document.txt"),
            "reading": reads(home / "document.txt"),
        }
        found, told = await answers(ship, home, wanted)

    refused = {"home": "PermissionError", "reading": "PermissionError"}
    assert found == {"repository": 1, "scratch": 1, **refused}
    assert told == "confined, but secrets are readable: this system has no mount namespaces"


async def test_without_any_means_a_program_starts_and_says_that_nothing_holds(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_means(monkeypatch, Means())
    async with aboard(tmp_path) as ship:
        found, told = await answers(ship, home, {"home": writes(home / "document.txt")})

    assert found == {"home": 1}
    assert told == "not confined: this system has neither mount namespaces nor Landlock"


@demands("S1-048b")
async def test_the_commands_of_a_terminal_are_confined_as_their_agent_is(
    tmp_path: Path, means: Means
) -> None:
    if not means.mounts:
        return
    outside = tmp_path / "outside.txt"
    line = f"echo x > {outside}; echo kept > plain.txt"
    steps = (
        runs(line, "t"),
        does("terminal/wait_for_exit", "ended", terminalId="$t"),
    )
    async with aboard(
        tmp_path,
        on=prompt(*steps),
        options={"confined": True, "writable": [str(tmp_path / "peer")]},
        config_approval=ApprovalMode.AUTO,
    ) as ship:
        await ship.tell(await ship.open(approval=ApprovalMode.AUTO))

    assert ship.peer.answers()["ended"]["result"] == {"exitCode": 0, "signal": None}
    assert not outside.exists()
    assert (ship.tree / "plain.txt").read_text() == "kept\n"


async def test_a_linked_working_tree_can_be_committed_to(
    tmp_path: Path, home: Path, means: Means
) -> None:
    if not means.mounts:
        return
    main, tree = tmp_path / "main", tmp_path / "tree"
    name = ("-c", "user.name=a", "-c", "user.email=a@b")
    git("init", "-q", str(main))
    git(*name, "-C", str(main), "commit", "-q", "--allow-empty", "-m", "x")
    git("-C", str(main), "worktree", "add", "-q", str(tree))
    commit = ["git", *name, "commit", "-q", "--allow-empty", "-m", "y"]
    async with aboard(tmp_path / "house") as ship:
        repo = await ship.house.repos.add(ship.house.owner, str(tree), at_terminal=True)
        linked = Aboard(house=ship.house, peer=ship.peer, repo=repo, tree=ship.tree)
        wanted = {
            "commit": f"subprocess.run({commit!r}, cwd={str(tree)!r}).returncode",
            "hook": writes(main / ".git/hooks/pre-commit"),
        }
        found, _ = await answers(linked, home, wanted)

    assert found == {"commit": 0, "hook": "OSError"}


async def test_what_redirects_git_does_not_outlive_the_program(
    tmp_path: Path, home: Path, means: Means, caplog: pytest.LogCaptureFixture
) -> None:
    if not means.mounts:
        return
    async with aboard(tmp_path) as ship:
        git("init", "-q", str(ship.tree))
        wanted = {"redirect": writes(ship.tree / ".git/commondir"), "env": writes(".env")}
        found, _ = await answers(ship, home, wanted)

    assert found == {"redirect": 1, "env": 1}
    assert not (ship.tree / ".git/commondir").exists()
    assert ".git/commondir" in caplog.text
    # A user may have created this one meanwhile, so it stays.
    assert (ship.tree / ".env").read_text() == "x"


async def test_a_sandbox_that_cannot_be_set_up_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More than this system gives: the filter of another machine.
    use_means(monkeypatch, Means(landlock=known_means().landlock or 1, seccomp=True))
    monkeypatch.setattr(
        "holdfast.process.seccomp.filter_program", lambda *, allows_ip_sockets: b"\xff" * 8
    )
    async with aboard(tmp_path, options={"confined": True}) as ship:
        session = await ship.open()
        await ship.tell(session)
        ended = await ship.ended(session)

    assert ended.failure is not None
    assert "set its option confined to false" in ended.failure.message


def test_the_folders_of_a_preset_are_below_the_home_and_not_all_of_it() -> None:
    for name, preset in PRESETS.items():
        assert preset.writable, name
        for path in preset.writable:
            assert path.startswith("~/."), path
            assert path not in ("~/.config", "~/.local", "~/.local/share", "~/.cache"), path


def test_a_working_tree_that_its_repository_does_not_know_opens_nothing(tmp_path: Path) -> None:
    other, tree = tmp_path / "other", tmp_path / "tree"
    git("init", "-q", str(other))
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {other}/.git\n")

    assert list(agent_command._shared_git_folder(str(tree))) == []


def test_a_downloaded_folder_that_calls_itself_a_working_tree_opens_nothing(tmp_path: Path) -> None:
    other, tree = tmp_path / "other", tmp_path / "tree"
    git("init", "-q", str(other))
    inner = tree / "inner"
    inner.mkdir(parents=True)
    (tree / ".git").write_text("gitdir: inner\n")
    (inner / "gitdir").write_text(f"{tree}/.git\n")
    (inner / "commondir").write_text(f"{other}/.git\n")

    assert list(agent_command._shared_git_folder(str(tree))) == []


async def test_what_belongs_to_holdfast_cannot_be_opened_for_an_agent(
    tmp_path: Path, home: Path, means: Means
) -> None:
    if not means.mounts:
        return
    async with aboard(tmp_path) as ship:
        ours = str(ship.house.config.home)
        found, _ = await answers(
            ship, home, {"files": f"os.listdir({ours!r})"}, writable=[ours], readable=[ours]
        )

    assert set(found["files"]) <= {"workspaces"}
