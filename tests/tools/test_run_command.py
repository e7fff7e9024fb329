"""Holds that `run_command` runs what the list allows, as it was agreed to, and nothing else."""

import asyncio
import contextvars
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.domain.tools import Effect, FsTier, Grant, ToolClass
from holdfast.ports.tools import PlannedCall
from holdfast.process.child import ChildNotStarted
from holdfast.process.environment import child_environment, restricted_path
from holdfast.process.executables import executables, find_executable, readable_for
from holdfast.tools.run_command import format_call, start_failure
from tests.marks import demands, each_case
from tests.tools.process_fixture import PYTHON, Workbench, codes, marked

pytestmark = pytest.mark.anyio

ECHO = os.path.realpath(shutil.which("echo") or "")


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    """Be a place to run commands at."""
    return Workbench(tmp_path)


async def test_an_allowed_command_gives_what_the_catalogue_says(bench: Workbench) -> None:
    source = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"

    told = await bench.script(source)

    duration = told.pop("duration_ms")
    assert told == {"exit_code": 3, "stdout": "out\n", "stderr": "err\n", "timed_out": False}
    assert isinstance(duration, int)


@demands("S0-205")
async def test_what_the_list_does_not_hold_is_refused_and_the_remedy_named(
    bench: Workbench,
) -> None:
    bench.allow("git status")

    done = await bench.call("run_command", command="git", args=["push", "a b"])

    assert codes(done) == ("denied", "command_not_allowed")
    assert done.error is not None
    assert "[chat].allowed_commands" in done.error.message
    assert "git push 'a b'" in done.error.message


async def test_a_command_with_white_space_is_told_to_use_args(bench: Workbench) -> None:
    bench.allow("'ls -la'", "ls -la", "'a\u00a0b'")

    for command in ("ls -la", "ls\t-la", "ls\n", " ls", "a\u00a0b", "a\u2003b"):
        done = await bench.call("run_command", command=command)
        assert codes(done) == ("error", "invalid_arguments"), command
        assert done.error is not None
        assert "put arguments in args" in done.error.message


@each_case(
    "arguments",
    [
        {},
        {"command": ""},
        {"command": 1},
        {"command": "ls", "args": "-la"},
        {"command": "ls", "args": [1]},
        {"command": "ls", "timeout_s": 0},
        {"command": "ls", "timeout_s": 601},
        {"command": "ls", "timeout_s": "60"},
        {"command": "ls", "shell": True},
        {"command": "ls", "env": {"A": "b"}},
        {"command": "ls", "cwd": "/"},
        {"command": "ls", "args": ["a\x00b"]},
        {"command": "l\x00s"},
    ],
)
async def test_other_arguments_do_not_fit(bench: Workbench, arguments: dict[str, Any]) -> None:
    bench.allow(globs=("ls **",))

    assert codes(await bench.call("run_command", **arguments)) == ("error", "invalid_arguments")


@demands("S0-205")
async def test_a_tool_without_a_list_is_not_offered(bench: Workbench) -> None:
    offered = {tool.name for tool in await bench.toolbox.offers(bench.place)}
    bench.allow("ls")
    with_list = {tool.name for tool in await bench.toolbox.offers(bench.place)}

    assert "run_command" not in offered
    assert "run_command" in with_list


@demands("S0-205")
async def test_every_grant_has_to_allow_the_command(bench: Workbench) -> None:
    bench.grants = (Grant(commands=("true", "false")), Grant(commands=("true",)))

    assert codes(await bench.call("run_command", command="true")) == ("ok", "")
    assert codes(await bench.call("run_command", command="false")) == (
        "denied",
        "command_not_allowed",
    )


async def test_a_plan_says_all_of_what_would_run(bench: Workbench) -> None:
    words = ("echo", "a b", 'q"', "\u202egnp.exe", "back\\slash", "line\nbreak", "\x1b[31m", "іl")
    bench.allow(words)

    planned = await bench.plan("run_command", command=words[0], args=list(words[1:]))

    assert isinstance(planned, PlannedCall)
    line = r'"echo" "a b" "q\"" "\u202egnp.exe" "back\\slash" "line\nbreak" "\u001b[31m" "іl"'
    lines = planned.question.splitlines()
    assert lines[0] == line
    assert lines[1] == f"program: {ECHO}"
    assert lines[2] == f"in: {bench.work}"
    assert '"\\u0456l"' in lines[-1]
    assert planned.preview == {"command": line}
    assert (planned.effect, planned.tool_class) == (Effect.UNSAFE, ToolClass.PROCESS)
    assert planned.memory == "process:" + msgspec.json.encode(words).decode().replace(
        "\u202e", "\\u202e"
    ).replace("і", "\\u0456").replace(",", ", ")


async def test_the_same_words_are_remembered_as_the_same(bench: Workbench) -> None:
    bench.allow(globs=("echo **",))

    one = await bench.plan("run_command", command="echo", args=["a", "b"])
    same = await bench.plan("run_command", command="echo", args=["a", "b"], timeout_s=5)
    other = await bench.plan("run_command", command="echo", args=["a b"])

    assert isinstance(one, PlannedCall)
    assert isinstance(same, PlannedCall)
    assert isinstance(other, PlannedCall)
    assert one.memory == same.memory
    assert one.memory != other.memory


async def test_the_network_is_part_of_the_question(bench: Workbench) -> None:
    bench.allow("true", domains=("example.com",))

    planned = await bench.plan("run_command", command="true")

    assert isinstance(planned, PlannedCall)
    assert planned.question.splitlines()[-1] == "with the network"


async def test_a_program_that_changed_after_the_plan_is_not_run(bench: Workbench) -> None:
    program = bench.work / "tool"
    program.write_text("#!/bin/sh\ntouch ran\n")
    program.chmod(0o700)
    bench.allow("./tool")
    planned = await bench.plan("run_command", command="./tool")
    assert isinstance(planned, PlannedCall)

    program.write_text("#!/bin/sh\ntouch evil\n")
    done = await bench.toolbox.run(bench.place, planned)

    assert codes(done) == ("denied", "target_changed")
    assert sorted(os.listdir(bench.work)) == ["tool"]


async def test_a_folder_or_an_environment_that_changed_is_another_plan(bench: Workbench) -> None:
    bench.allow("true")
    planned = await bench.plan("run_command", command="true")
    assert isinstance(planned, PlannedCall)

    bench.environment["TZ"] = "Asia/Tokyo"
    other_environment = await bench.toolbox.run(bench.place, planned)
    del bench.environment["TZ"]
    bench.work.rename(bench.work.with_name("gone"))
    bench.work.mkdir()
    other_folder = await bench.toolbox.run(bench.place, planned)

    assert codes(other_environment) == ("denied", "target_changed")
    assert codes(other_folder) == ("denied", "target_changed")


async def test_where_scratch_lies_is_no_part_of_what_was_agreed_to(
    bench: Workbench, tmp_path: Path
) -> None:
    bench.allow("true")
    planned = await bench.plan("run_command", command="true")
    assert isinstance(planned, PlannedCall)

    bench.scratch = tmp_path / "scratch after a restart"
    bench.scratch.mkdir()

    assert codes(await bench.toolbox.run(bench.place, planned)) == ("ok", "")


async def test_an_act_without_its_plan_does_nothing(bench: Workbench) -> None:
    bench.allow("touch ran")
    planned = await bench.plan("run_command", command="touch", args=["ran"])
    assert isinstance(planned, PlannedCall)
    tool = bench.toolbox._tools["run_command"]
    arguments = msgspec.convert(planned.asked.arguments, tool.arguments)

    async def act() -> Any:
        return await tool.act(bench.place, arguments, planned.asked)

    with pytest.raises(Exception, match="not planned"):
        await asyncio.create_task(act(), context=contextvars.Context())

    assert os.listdir(bench.work) == []


async def test_a_working_directory_that_is_not_there_is_unavailable(bench: Workbench) -> None:
    bench.allow("true")
    bench.work.rmdir()

    done = await bench.call("run_command", command="true")

    assert codes(done) == ("error", "unavailable")


async def test_a_working_directory_behind_a_link_is_the_one_it_leads_to(
    bench: Workbench, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(bench.work)
    real, bench.work = bench.work, tmp_path / "link"

    told = await bench.script("import os; print(os.getcwd())")

    assert told["stdout"] == f"{real}\n"


async def test_a_program_is_found_outside_of_the_workspace_only(bench: Workbench) -> None:
    for folder in (bench.work, bench.scratch):
        fake = folder / "only-here"
        fake.write_text("#!/bin/sh\necho fake\n")
        fake.chmod(0o700)
    bench.environment["PATH"] = f"{bench.work}:{bench.scratch}:.::/usr/bin:/bin"
    bench.allow("only-here", "./only-here", str(bench.work / "only-here"))

    by_name = await bench.call("run_command", command="only-here")
    by_path = await bench.run("./only-here")
    absolute = await bench.run(str(bench.work / "only-here"))

    assert codes(by_name) == ("error", "unavailable")
    assert by_path["stdout"] == absolute["stdout"] == "fake\n"


async def test_another_spelling_of_a_path_is_another_command(bench: Workbench) -> None:
    bench.allow("/bin/true")

    for other in ("/bin/../bin/true", "//bin/true", "true", "/usr/bin/true", "bin/true"):
        done = await bench.call("run_command", command=other)
        assert codes(done) == ("denied", "command_not_allowed"), other


async def test_no_shell_reads_the_words(bench: Workbench) -> None:
    words = ["$HOME", "`id`", "$(id)", "*", "a;b", "a&&b", "|", ">out", "~", "{a,b}", "'x'", "#"]

    told = await bench.run("printf", "%s\\n", *words)

    assert told["stdout"].splitlines() == words
    assert os.listdir(bench.work) == []


async def test_a_command_that_takes_too_long_is_a_result(bench: Workbench) -> None:
    told = await bench.script("import time; time.sleep(600)", timeout_s=1)

    assert (told["exit_code"], told["timed_out"]) == (143, True)


async def test_cancelling_a_call_leaves_no_process(bench: Workbench) -> None:
    source = f"mark = 'cancel-{os.getpid()}-{id(bench)}'; import time; time.sleep(600)"
    mark = source.split("'")[1]
    bench.allow((PYTHON, "-c", source))
    task = asyncio.ensure_future(bench.call("run_command", command=PYTHON, args=["-c", source]))
    async with asyncio.timeout(20):
        while not marked(mark):  # noqa: ASYNC110 — what other processes do rings no bell
            await asyncio.sleep(0.01)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert marked(mark) == []


async def test_a_script_without_an_interpreter_cannot_be_started(bench: Workbench) -> None:
    script = bench.work / "script"
    script.write_text("#!/nowhere/interpreter\n")
    script.chmod(0o700)
    bench.allow("./script")

    done = await bench.call("run_command", command="./script")

    assert codes(done) == ("error", "failed")
    assert done.error is not None
    assert done.error.message == "./script cannot be started: no such file or directory."


async def test_too_many_words_are_too_large(bench: Workbench) -> None:
    bench.allow(globs=("true **",))

    done = await bench.call("run_command", command="true", args=["x" * 100_000] * 60)

    assert codes(done) in {("error", "too_large"), ("denied", "too_large")}


def test_trouble_with_the_confinement_is_not_the_commands_fault() -> None:
    changed = start_failure(ChildNotStarted("folder-changed"), "ls")
    confined = start_failure(ChildNotStarted("mounts", 1), "ls")

    assert (changed.code, confined.code) == ("target_changed", "unavailable")
    assert confined.message == "The process could not be sandboxed here: mounts (EPERM)."


def test_what_is_shown_can_be_read_in_one_way_only() -> None:
    calls = [("a", "b"), ("a b",), ('a" "b',), ("a\\", "b"), ('a\\"', "b"), ("a\\nb",), ("a\nb",)]

    assert len({format_call(call) for call in calls}) == len(calls)


def test_an_environment_holds_the_listed_names_only(tmp_path: Path) -> None:
    source = {
        "PATH": "/usr/bin",
        "HOME": "/home/ada",
        "LANG": "C",
        "OPENAI_API_KEY": "sk-1",
        "LD_PRELOAD": "evil.so",
        "SSH_AUTH_SOCK": "/x",
        "MY_SETTING": "yes",
        "TMPDIR": "/elsewhere",
    }

    told = child_environment(
        source, path=("/usr/bin", "/bin"), scratch="/scratch", more=("MY_SETTING", "ABSENT")
    )

    assert told == {
        "PATH": "/usr/bin:/bin",
        "HOME": "/home/ada",
        "LANG": "C",
        "MY_SETTING": "yes",
        "TMPDIR": "/scratch",
    }


def test_a_path_keeps_folders_that_nobody_else_decides_about(tmp_path: Path) -> None:
    good, open_, inner, file = (tmp_path / name for name in ("good", "open", "open/in", "file"))
    for folder in (good, open_, inner):
        folder.mkdir()
    file.touch()
    open_.chmod(0o777)
    (tmp_path / "link").symlink_to(good)
    workspace = tmp_path / "workspace"
    (workspace / "bin").mkdir(parents=True)
    (tmp_path / "into").symlink_to(workspace / "bin")
    entries = [
        *(str(good), str(open_), str(inner), str(file), str(tmp_path / "link"), str(good)),
        *("", ".", "relative", "~/bin", str(tmp_path / "missing")),
        *(str(workspace / "bin"), str(tmp_path / "into"), str(workspace)),
    ]

    found = restricted_path(":".join(entries), without=(str(workspace),))

    assert found == (str(good), str(tmp_path / "link"))
    assert restricted_path(None, without=()) != ()


def test_a_program_brings_what_it_needs_to_read(tmp_path: Path) -> None:
    installed = tmp_path / "tool"
    (installed / "bin").mkdir(parents=True)
    interpreter = installed / "bin/python9"
    interpreter.write_bytes(b"\x7fELF")
    script = tmp_path / "script"
    script.write_text(f"#!{interpreter}\n")
    for each in (interpreter, script):
        each.chmod(0o700)
    environment = tmp_path / "root/.venv/bin"
    environment.mkdir(parents=True)
    (environment / "python").symlink_to(interpreter)
    (tmp_path / "root/venv/bin").mkdir(parents=True)
    (tmp_path / "root/venv/bin/python").symlink_to(script)
    found = find_executable(str(script), path=(), folder="/")
    assert found is not None

    needed = readable_for(found, path=(), roots=(str(tmp_path / "root"),))

    assert {str(script), str(interpreter), f"{installed}/bin", f"{installed}/lib"} <= set(needed)
    assert str(tmp_path) not in needed
    assert find_executable("script", path=(str(tmp_path),), folder="/") == found
    assert find_executable("..", path=(str(tmp_path),), folder="/") is None
    assert find_executable(str(tmp_path), path=(), folder="/") is None


def test_the_home_of_all_data_is_not_part_of_an_installation(tmp_path: Path) -> None:
    programs = tmp_path / ".local/bin"
    programs.mkdir(parents=True)
    (programs / "tool").write_bytes(b"")
    (programs / "tool").chmod(0o700)
    found = find_executable("tool", path=(str(programs),), folder="/")
    assert found is not None

    needed = readable_for(found, path=(str(programs),), roots=())

    assert f"{tmp_path}/.local/lib" in needed
    assert f"{tmp_path}/.local/share" not in needed


def test_what_has_to_be_executed_is_read_from_the_program(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF\x02\x01" + bytes(10))
    plain = tmp_path / "static"
    plain.write_bytes(b"\x7fELF\x02\x01" + bytes(58))

    real = os.path.realpath(sys.executable)
    found = executables(real)

    assert found is not None
    assert found[0] == real
    assert all(os.path.exists(each) for each in found)
    assert executables(str(script)) is None
    assert executables(str(broken)) is None
    assert executables(str(plain)) == (str(plain),)
    assert executables(str(tmp_path / "missing")) is None


async def test_a_wider_tier_is_another_plan(bench: Workbench) -> None:
    bench.allow("true")
    planned = await bench.plan("run_command", command="true")
    assert isinstance(planned, PlannedCall)
    bench.allow("true", tier=FsTier.FULL)

    assert codes(await bench.toolbox.run(bench.place, planned)) == ("denied", "target_changed")
