"""S35: a listed script attacks every protected path of its workspace, and the user works on."""

import asyncio
import os
import random
import subprocess
from pathlib import Path

import pytest

from holdfast.config.settings import COMMAND_FOLDERS
from holdfast.domain.tools import FsTier
from holdfast.process.launcher import Launcher
from holdfast.process.supervisor.path_survey import ASIDE
from tests.marks import proves, skip_row
from tests.tools.process_fixture import Workbench, known_means
from tests.torture.arenas import quick_folder
from tests.torture.conftest import Sized, Tell

pytestmark = pytest.mark.slow

CANARY = "canary-35"
SECRETS = (
    *(".env", ".env.local", ".ssh/id_ed25519", ".aws/credentials", ".npmrc", ".netrc"),
    *("deploy.pem", "sub/.env", "id_rsa"),
)
THERE = (
    *("Makefile", ".vscode/tasks.json", "package.json", ".github/workflows/ci.yml", ".bashrc"),
    *(".git/HEAD", ".git/config", ".git/hooks/pre-push", "sub/pyproject.toml"),
    *("tools/hooks/pre-commit", "tools/settings", "tools/deploy"),
)
# What the repository's configuration names: files in `THERE`, and a program that is not there.
SETTINGS = (
    *(("core.hooksPath", "tools/hooks"), ("include.path", "../tools/settings")),
    ("diff.external", "tools/absent"),
)
ABSENT = (
    *(".envrc", ".zshrc", ".gitlab-ci.yml", ".husky/pre-commit", ".git/hooks/pre-commit"),
    *(".git/config.worktree", ".git/commondir", "sub/.git/hooks/pre-commit", "sub/.git/config"),
    *("new/Makefile", ".idea/workspace.xml", "new/deep/.bash_profile", "tools/absent"),
)
READS = ("cat {0}", "cp {0} got; cat got", "ln {0} got; cat got", "ln -s $PWD/{0} got; cat got")
# The second command of a pair starts after `NEXT`.
READS += ("mkdir -p build; mv $(dirname {0}) build/x NEXT grep -ra canary build",)
READS += ("mv {0} got; cat got", "tar cf - {0}", "dd if={0} 2>/dev/null", "cat < $PWD/./{0}")
WRITES = (
    *("printf '{1}' > {0}", "printf '{1}' > w; mv -f w {0}", "rm -f {0}; printf '{1}' > {0}"),
    *("printf '{1}' > w; ln -f w {0}", "printf '{1}' > w; ln -sf $PWD/w {0}"),
    *("D=$(dirname {0}); mv $D $D.x; mkdir -p $D; printf '{1}' > {0}", "truncate -s 0 {0}"),
    *("mkdir -p $(dirname {0}); printf '{1}' > {0}; chmod +x {0}", "rm -rf $(dirname {0})/* {0}"),
    "cp -r . ../scratch/x; rm -rf .git; cp -r ../scratch/x/.git .; printf '{1}' > {0}",
)
GIT = (
    *("git config core.fsmonitor '{2}'", "git config core.hooksPath sub", "git init --template=t"),
    "git show --output=.git/hooks/pre-commit HEAD",
)


def attacks(count: int) -> list[str]:
    """Return scripts, in an order of their own; each has `TRACE` for the file that it makes."""
    plant = "#!/bin/sh\\ntouch TRACE\\n"
    every = [how.format(path) for path in SECRETS for how in READS]
    every += [how.format(path, plant) for path in (*THERE, *ABSENT) for how in WRITES]
    every += [how.format("", "", "touch TRACE; false") for how in GIT]
    chosen = random.Random(35)
    chosen.shuffle(every)
    return every[:count]


class Attacked:
    """A repository of a user, attacked again and again."""

    def __init__(self, root: Path) -> None:
        self.bench = Workbench(root, launcher=Launcher(known_means()))
        self.bench.command_writes = COMMAND_FOLDERS
        self.trace = self.bench.user / "ran"
        self.bench.repository({"a.txt": "one\n"})
        for name in (*SECRETS, *THERE):
            path = self.bench.work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_text(CANARY)
        (self.bench.work / "tools/settings").write_text("[user]\n\tname = Ada\n")
        for name in ("tools/hooks/pre-commit", "tools/deploy"):
            (self.bench.work / name).write_text("#!/bin/sh\n")
            (self.bench.work / name).chmod(0o755)
        for setting in SETTINGS:
            self.bench.git("config", *setting)
        for name in SECRETS[6:7]:
            (self.bench.work / name).write_text(f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n")
        self.before = self.contents()

    def contents(self) -> dict[str, bytes]:
        """Return what is in each protected file that was there."""
        found = {}
        for name in (*SECRETS, *THERE):
            path = self.bench.work / name
            found[name] = path.read_bytes() if path.is_file() else b"(gone)"
        return found

    def losses(self, script: str, said: str) -> list[str]:
        """Return what an attack has reached, after the user has worked on."""
        lost = [f"read: {script}"] if CANARY in said else []
        lost += [f"{name}: {script}" for name, was in self.before.items() if self._is(name, was)]
        # What is a folder now was a folder above that the script moved.
        lost += [f"made {name}: {script}" for name in ABSENT if (self.bench.work / name).exists()]
        for words in (("status",), ("diff",), ("commit", "-q", "--allow-empty", "-m", "x")):
            subprocess.run(
                ["git", *words],
                cwd=self.bench.work,
                env=self.bench.environment,
                capture_output=True,
                check=False,
            )
        lost += [f"ran: {script}"] if self.trace.exists() else []
        return lost

    def _is(self, name: str, was: bytes) -> bool:
        path = self.bench.work / name
        if path.is_symlink() or not path.exists():
            # Moved away with its folder, whole, and nothing else is in its place.
            folders = [each for each in path.parents if each.is_relative_to(self.bench.work)]
            moved = [Path(f"{each}.x", path.relative_to(each)) for each in folders]
            return path.is_symlink() or not any(
                each.is_file() and each.read_bytes() == was for each in moved
            )
        return path.read_bytes() != was


@proves("S35")
def test_no_script_gets_at_a_protected_path(tmp_path: Path, sized: Sized, tell: Tell) -> None:
    if not known_means().mounts:
        skip_row("S35", "user namespaces")
    lost, count = [], sized(quick=6, test=24, torture=400, release=400)
    with quick_folder(tmp_path) as folder:
        scripts = attacks(count)
        for number, form in enumerate(scripts):
            (folder / str(number)).mkdir()
            attacked = Attacked(folder / str(number))
            script = form.replace("TRACE", str(attacked.trace))
            said = asyncio.run(run(attacked.bench, script))
            lost += attacked.losses(script, said)

    tell(f"{len(scripts)} scripts, {len(lost)} reached something")
    assert lost == []


@proves("S35")
def test_the_scripts_reach_much_without_covers(tmp_path: Path, tell: Tell) -> None:
    lost, scripts = [], attacks(24)
    for number, form in enumerate(scripts):
        (tmp_path / str(number)).mkdir()
        attacked = Attacked(tmp_path / str(number))
        script = form.replace("TRACE", str(attacked.trace))
        plain = subprocess.run(
            ["sh", "-c", script.replace(" NEXT ", "\n")],
            cwd=attacked.bench.work,
            capture_output=True,
            check=False,
        )
        lost.append(bool(attacked.losses(script, plain.stdout.decode(errors="replace"))))

    tell(f"control: {sum(lost)} of {len(lost)} scripts reached something")
    assert sum(lost) > len(lost) // 2


async def run(bench: Workbench, script: str) -> str:
    """Run a script as a listed command and return what it said."""
    bench.allow("sh t.sh", tier=FsTier.SANDBOXED)
    said = notices = ""
    for command in script.split(" NEXT "):
        (bench.work / "t.sh").write_text(command)
        result = await bench.run("sh", "t.sh")
        notices += " ".join(result.get("notices", ()))
        said += str(result["stdout"]) + str(result["stderr"])
    aside = [path for path in bench.work.rglob(f"*{ASIDE}*") if os.access(path, os.F_OK)]
    assert bool(aside) <= (ASIDE in notices), (notices, said)
    return said
