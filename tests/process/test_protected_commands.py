"""Holds that protected paths hold for commands: read, written, planted, moved or linked around."""

import errno
import filecmp
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.domain.tools import FsTier, Grant, ResultCode, ToolClass
from holdfast.ports.tools import PlannedCall
from holdfast.process.child import ChildNotStarted
from holdfast.process.launcher import Launcher
from holdfast.process.sandbox import Bounds, Means
from holdfast.tools.run_command import start_failure
from tests.process.conftest import SECRET, is_held, run_plainly, sh
from tests.tools.process_fixture import Workbench, known_means

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tier", list(FsTier))
async def test_secrets_cannot_be_read(bench: Workbench, tier: FsTier) -> None:
    if not is_held(bench):
        return
    told = await sh(
        bench,
        "cat .env; cat .ssh/*; ls -A .ssh; cat deploy.pem; cat .git/config; git remote -v\n"
        "cp .env copy; ln .env link; cat copy link; grep -r canary . ; cat .git/../.env\n",
        tier=tier,
    )

    assert SECRET not in told["stdout"] + told["stderr"]
    assert "https://example.com/a.git" in told["stdout"]
    assert SECRET in (bench.work / ".env").read_text()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["Makefile", ".vscode/tasks.json", ".env", ".git/HEAD"])
async def test_what_is_there_cannot_be_written(bench: Workbench, name: str) -> None:
    if not is_held(bench):
        return
    before = (bench.work / name).read_text()
    told = await sh(
        bench,
        f"echo x >> {name}; rm -f {name}; echo x > new; mv -f new {name}; chmod 777 {name};"
        f" truncate -s 0 {name}; ln -sf a.txt {name}; exit 1",
    )

    assert (bench.work / name).read_text() == before, told
    assert not (bench.work / name).is_symlink()
    assert any("command_writes" in each for each in told["notices"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [".envrc", ".bashrc", ".gitlab-ci.yml", ".husky/pre-commit", "sub/.git/config", "sub/Makefile"],
)
async def test_what_is_new_is_moved_aside(bench: Workbench, name: str) -> None:
    told = await sh(bench, f"mkdir -p $(dirname {name}); echo x > {name}; chmod +x {name}")

    assert not (bench.work / name).exists()
    (notice,) = told["notices"]
    assert ".moved-aside" in notice
    aside = next(path for path in bench.work.rglob("*.moved-aside"))
    assert aside.is_dir() or not os.access(aside, os.X_OK) or aside.stat().st_mode & 0o111 == 0


async def test_what_is_new_is_moved_aside_also_when_the_command_is_killed(
    bench: Workbench,
) -> None:
    told = await sh(bench, "trap '' TERM; echo x > .envrc; while :; do sleep 1; done", timeout_s=1)

    assert told["timed_out"]
    assert not (bench.work / ".envrc").exists()


HOUSE = """
import asyncio, sys
from pathlib import Path
from tests.tools.process_fixture import Workbench
bench = Workbench(Path(sys.argv[1]))
bench.allow("sh t.sh")
asyncio.run(bench.run("sh", "t.sh"))
"""


def test_what_is_new_is_moved_aside_also_when_holdfast_is_killed(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "t.sh").write_text("echo x > .envrc; echo > ready; sleep 600")
    with subprocess.Popen([sys.executable, "-c", HOUSE, str(tmp_path)]) as house:
        wait_for((work / "ready").exists)
        house.kill()

    wait_for(lambda: not (work / ".envrc").exists())
    assert (work / ".envrc.moved-aside").read_text() == "x\n"


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


async def test_no_name_that_a_command_takes_keeps_a_new_file_in_place(bench: Workbench) -> None:
    if not is_held(bench):
        return
    long = "a" * 246 + ".pth"
    script = f"mkdir .zed; echo x > .zed/tasks.json; mkdir .zed.moved-aside; echo x > {long}"
    result = await sh(bench, script)

    assert len(result["notices"]) == 2
    assert not (bench.work / ".zed").exists()
    assert not (bench.work / long).exists()


async def test_a_folder_above_that_is_replaced_takes_nothing_along(bench: Workbench) -> None:
    if not is_held(bench):
        return
    (bench.work / "sub").mkdir()
    (bench.work / "sub/package.json").write_text("mine")
    told = await sh(bench, "mv sub old; mkdir sub; echo x > sub/package.json")

    assert not (bench.work / "sub/package.json").exists()
    assert (bench.work / "old/package.json").read_text() == "mine"
    assert len(told["notices"]) == 1


SECRETS = {
    "file": ("conf/.env", "conf"),
    "file below": ("conf/inner/.env", "conf"),
    "named by its folder": ("conf/.docker/config.json", "conf/.docker"),
    "link": ("conf/.env", "conf"),
    "hard link": ("conf/notes.txt", "conf"),
    "repository": ("conf/.git/config", "conf"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", SECRETS)
async def test_a_folder_with_a_secret_cannot_be_moved(bench: Workbench, what: str) -> None:
    if not is_held(bench):
        return
    name, folder = SECRETS[what]
    path = bench.work / name
    path.parent.mkdir(parents=True)
    if what == "link":
        (bench.work / "target").write_text(SECRET)
        path.symlink_to("../target")
    elif what == "hard link":
        os.link(bench.work / ".env", path)
    elif what == "repository":
        bench.git("init", "--quiet", folder=bench.work / "conf")
        bench.git(
            *("config", "remote.a.url", f"https://a:{SECRET}@b.c/d"), folder=bench.work / "conf"
        )
    else:
        path.write_text(SECRET)
    before = path.read_bytes()

    await sh(bench, f"mkdir -p build; mv {folder} build/moved; mv {folder} moved; mv conf m2")
    read = await sh(bench, "grep -ra canary . ; cat target")

    assert SECRET not in read["stdout"]
    assert path.read_bytes() == before


async def test_a_folder_with_a_secret_can_be_worked_in(bench: Workbench) -> None:
    (bench.work / "conf").mkdir()
    (bench.work / "conf/.env").write_text(SECRET)
    done = await sh(bench, "echo x > a; mv a conf/a; mkdir conf/b; mv conf/a conf/b/c; mv conf/b b")

    assert done["exit_code"] == 0, done
    assert (bench.work / "b/c").read_text() == "x\n"


DEEP = """
import os, sys
folder = os.open(".", os.O_RDONLY)
for _ in range(20):
    os.makedirs("d" * 250, exist_ok=True)
    os.chdir("d" * 250)
if sys.argv[1] == "move":
    os.rename("conf", "conf", src_dir_fd=folder)
elif sys.argv[1] == "read":
    print(open("conf/.env").read())
else:
    open("Makefile", "w").write("all:")
"""


async def test_no_path_is_too_long_to_be_found(bench: Workbench) -> None:
    if not is_held(bench):
        return
    (bench.work / "conf").mkdir()
    (bench.work / "conf/.env").write_text(SECRET)
    (bench.work / "deep.py").write_text(DEEP)
    await sh(bench, "/usr/bin/python3 deep.py move")
    read = await sh(bench, "/usr/bin/python3 deep.py read")
    new = await sh(bench, "/usr/bin/python3 deep.py write")

    assert SECRET not in read["stdout"]
    assert (bench.work / "conf/.env").read_text() == SECRET
    assert any(".moved-aside" in each for each in new["notices"])
    os.rename(bench.work / ("d" * 250), bench.user / "removed")


async def test_a_folder_that_is_there_and_too_deep_is_hidden(bench: Workbench) -> None:
    if not is_held(bench):
        return
    run_plainly(bench, sys.executable, "-c", DEEP, "write")
    (bench.work / "deep.py").write_text(
        "import os\nfor _ in range(20): os.chdir('d' * 250)\nprint(os.listdir())"
    )
    read = await sh(bench, "/usr/bin/python3 deep.py")

    assert "Makefile" not in read["stdout"]
    assert "notices" not in read


LISTS = """
import os, sys
from holdfast.process.supervisor.path_survey import Survey, restore
from holdfast.process.supervisor.syscalls import StepRefused
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
guard = dict(
    roots=[sys.argv[1]], outside=[], hidden=[], open_names=[], home=None, is_jailed=True,
    writes_git=False, writes_sensitive=False, keeps_new=False,
)
try:
    before = Survey(guard)
    print(before.covers.get(sys.argv[1] + "/closed"))
    os.mkdir(sys.argv[1] + "/new")
    os.chmod(sys.argv[1] + "/new", 0o300)
    print(restore(guard, before.known))
except StepRefused as refused:
    print(refused.stage)
"""


@pytest.mark.parametrize("is_root_closed", [False, True])
def test_a_folder_that_cannot_be_listed_is_hidden(is_root_closed: bool) -> None:
    # A user without privileges can reach it, unlike `tmp_path`.
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, "work")
        (work / "closed").mkdir(parents=True)
        owner = 65534 if os.geteuid() == 0 else os.geteuid()
        for path in (Path(folder), work, work / "closed"):
            os.chown(path, owner, -1)
        (work if is_root_closed else work / "closed").chmod(0o300)
        ran = subprocess.run(
            [sys.executable, "-c", LISTS, str(work)], capture_output=True, text=True, check=True
        )
        (work / "closed").chmod(0o700)
        work.chmod(0o700)

    hidden = f"hidden\n['{work}/new']\n"
    assert ran.stdout == ("survey\n" if is_root_closed else hidden)


async def test_a_folder_of_another_user_is_hidden(bench: Workbench) -> None:
    if not is_held(bench) or os.geteuid() != 0:
        return
    folder = bench.work / "data"
    folder.mkdir()
    (folder / "Makefile").write_text("all:\n")
    os.chown(folder, 65534, -1)
    folder.chmod(0o711)
    result = await sh(bench, "cat a.txt; echo x >> data/Makefile")

    assert result["stdout"] == "one\n"
    assert not any(".moved-aside" in each for each in result.get("notices", ()))
    assert (folder / "Makefile").read_text() == "all:\n"


def test_a_workspace_that_cannot_be_searched_is_named_in_the_error() -> None:
    failure = start_failure(ChildNotStarted("survey", errno.EACCES), "make")

    assert failure.code is ResultCode.UNAVAILABLE
    assert "permission denied. Make the folder readable." in failure.message


async def test_other_names_of_a_protected_file_are_covered(bench: Workbench) -> None:
    if not is_held(bench):
        return
    os.link(bench.work / ".env", bench.work / "notes.txt")
    os.link(bench.work / "Makefile", bench.work / "rules.txt")
    told = await sh(bench, "cat notes.txt; echo x >> rules.txt")

    assert SECRET not in told["stdout"]
    assert (bench.work / "Makefile").read_text() == "all:\n"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tier", list(FsTier))
async def test_links_to_secrets_outside_the_workspace_are_covered(
    bench: Workbench, tier: FsTier
) -> None:
    if not is_held(bench):
        return
    secrets = [
        bench.hidden / "key",
        bench.user / ".ssh/config",
        bench.user / ".aws/sso/cache/token",
    ]
    for number, path in enumerate(secrets):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SECRET)
        os.link(path, bench.work / f"notes{number}.txt")
    (bench.user / "plain.txt").write_text("plain")
    os.link(bench.user / "plain.txt", bench.work / "plain.txt")
    told = await sh(bench, "cat notes0.txt notes1.txt notes2.txt plain.txt", tier=tier)

    assert told["stdout"] == "plain"


async def test_a_protected_link_is_covered_where_it_leads_and_put_back(bench: Workbench) -> None:
    if not is_held(bench):
        return
    (bench.work / "env").mkdir()
    (bench.work / "env/dev").write_text(SECRET)
    (bench.work / ".env").unlink()
    (bench.work / ".env").symlink_to("env/dev")
    told = await sh(bench, "cat env/dev .env; rm .env; echo x > .env")

    assert SECRET not in told["stdout"]
    assert (bench.work / ".env").read_text() == SECRET
    assert (bench.work / ".env").is_symlink()


async def test_what_the_settings_name_can_be_written(bench: Workbench) -> None:
    bench.command_writes = ("Makefile", "out")
    told = await sh(bench, "echo x > Makefile; mkdir out; echo x > out/package.json")

    assert "notices" not in told
    assert (bench.work / "Makefile").read_text() == "x\n"


async def test_in_full_reach_the_home_is_covered(bench: Workbench) -> None:
    if not is_held(bench):
        return
    for name in (".ssh/id_rsa", ".netrc", ".bashrc", ".config/fish/config.fish"):
        (bench.user / name).parent.mkdir(parents=True, exist_ok=True)
        (bench.user / name).write_text(SECRET)
    told = await sh(
        bench,
        "cd ~; cat .ssh/id_rsa .netrc; for f in .bashrc .config/fish/config.fish .ssh/id_rsa; do"
        " echo x > $f; rm -f $f; done",
        tier=FsTier.FULL,
    )

    assert SECRET not in told["stdout"]
    assert (bench.user / ".bashrc").read_text() == SECRET
    assert (bench.user / ".config/fish/config.fish").read_text() == SECRET
    assert (bench.user / ".ssh/id_rsa").read_text() == SECRET


async def test_without_mounts_a_command_is_asked_about_in_every_mode(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, launcher=Launcher(Means(landlock=known_means().landlock)))
    bench.allow("true")
    planned = await bench.plan("run_command", command="true")
    bench.allows_unprotected = True
    allowed = await bench.plan("run_command", command="true")

    assert isinstance(planned, PlannedCall)
    assert planned.tool_class is ToolClass.SENSITIVE_WRITE
    assert "no mount namespaces" in planned.question
    assert isinstance(allowed, PlannedCall)
    assert allowed.tool_class is ToolClass.PROCESS


async def test_a_command_is_bounded_in_memory_and_cpu_time(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    bench.bounds = Bounds(memory=256 << 20, cpu_seconds=1)
    greedy = await bench.script("x = bytearray(400 << 20)")
    bench.grants = (Grant(),)
    busy = await bench.script("while True: pass", timeout_s=60)

    assert "MemoryError" in greedy["stderr"]
    assert (busy["exit_code"], busy["timed_out"]) == (128 + signal.SIGKILL, False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "attack",
    [
        "echo x >> tools/deploy",
        "rm -f tools/deploy; echo x > tools/deploy; chmod +x tools/deploy",
        "mv tools t; mkdir tools; printf '#!/bin/sh' > tools/deploy; chmod +x tools/deploy",
        "mv tools t; mkdir tools; cp /bin/true tools/deploy",
        "mv tools t; mkdir evil; cp /bin/true evil/deploy; ln -s evil tools",
    ],
)
async def test_an_executable_script_cannot_be_written(bench: Workbench, attack: str) -> None:
    if not is_held(bench):
        return
    script = bench.work / "tools/deploy"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    await sh(bench, attack)

    assert not script.exists() or script.read_text() == "#!/bin/sh\n"


async def test_commands_write_new_scripts_and_binaries(bench: Workbench) -> None:
    shutil.copy("/bin/true", bench.work / "program")
    made = await sh(bench, "printf '#!/bin/sh' > run; chmod +x run; cp /bin/false program; ./run")
    bench.command_writes = ("run",)
    named = await sh(bench, "echo '#' >> run")

    assert (made["exit_code"], named["exit_code"]) == (0, 0), (made, named)
    assert "notices" not in made
    assert filecmp.cmp(bench.work / "program", "/bin/false", shallow=False)
