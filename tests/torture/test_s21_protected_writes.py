"""S21: what would run later or rule over us is written to, there or not, in every tier."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.domain.tools import FsTier, ToolClass
from holdfast.ports.tools import CallOutcome, PlannedCall
from holdfast.process.protected_paths import ProtectedPaths
from tests.marks import proves
from tests.tools.file_fixture import Workshop
from tests.tools.files.run_later_paths import ASKING, ORDINARY
from tests.torture.arenas import quick_folder
from tests.torture.conftest import Tell

pytestmark = pytest.mark.slow

GIT = (
    *("config", "HEAD", "index", "hooks/pre-commit", "hooks/post-checkout", "info/attributes"),
    *("info/exclude", "objects/info/alternates", "modules/sub/config", "config.worktree", "new"),
)
PROTECTED = (
    *(f".git/{name}" for name in GIT),
    *(f"sub/.git/{name}" for name in GIT[:4]),
    *(".GIT/config", ".Git/hooks/pre-push", ".git./config", ".git::$DATA/config", "git~1/config"),
    *(".g\u200cit/config", ".git", "sub/.git"),
    *(".holdfast/config.toml", ".holdfast/agents/a.agent.yaml", ".Holdfast/models.yaml"),
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv"),
    *(".zprofile", ".zlogin", ".kshrc", ".cshrc", ".tcshrc", ".login", ".inputrc", ".xsession"),
    *(".BASHRC", ".bashrc.", "dotfiles/.zshrc"),
    *(".config/fish/config.fish", ".config/fish/conf.d/x.fish", ".config/nushell/env.nu"),
    *(".gitconfig", ".config/git/config", ".config/git/attributes", ".git-credentials"),
    *(".ssh/authorized_keys", ".ssh/config", ".ssh/rc", "authorized_keys", ".ssh/id_ed25519"),
    *(".config/systemd/user/x.service", ".local/share/systemd/user/x.timer"),
    *(".config/autostart/x.desktop", ".config/environment.d/x.conf"),
    *("Library/LaunchAgents/x.plist", "Library/LaunchDaemons/x.plist"),
    *("AppData/Roaming/Microsoft/Windows/Start Menu/Programs/Startup/x.bat",),
    *("Documents/PowerShell/x.ps1", "profile.ps1", "Microsoft.PowerShell_profile.ps1"),
    *(".env", ".env.local", ".envrc", ".npmrc", ".pypirc", ".netrc", ".docker/config.json"),
)
OURS = ("config.toml", "key", "history.db", "token", "agents/x.agent.yaml", "models.yaml", "new")
MODES = ("replace", "create", "append")


@proves("S21")
@pytest.mark.parametrize("tier", list(FsTier))
def test_nothing_that_rules_or_runs_is_written_whether_there_or_not(
    tmp_path: Path, tier: FsTier, tell: Tell
) -> None:
    with quick_folder(tmp_path) as folder:
        shop = Workshop(folder, tier=tier)
        ours = [str(shop.home / name) for name in OURS]
        broken = asyncio.run(passed(shop, [*PROTECTED, *ours]))
        made = [path for path in (*PROTECTED, *ours) if (shop.inside / path).is_file()]

    tell(f"{tier}: {len(PROTECTED) + len(OURS)} files, absent and there, {len(broken)} written")
    assert len(PROTECTED) >= 60
    assert broken == []
    assert made == []


@proves("S21")
@pytest.mark.parametrize("tier", list(FsTier))
def test_what_others_run_later_never_passes_without_a_question_of_its_own(
    tmp_path: Path, tier: FsTier
) -> None:
    planned = asyncio.run(planned_writes(Workshop(tmp_path, tier=tier), ASKING))

    assert [each.tool_class for each in planned] == [ToolClass.SENSITIVE_WRITE] * len(ASKING)
    # An answer for the session would let the next one pass.
    assert {each.memory for each in planned} == {None}


@proves("S21")
def test_ordinary_source_is_written_without_a_question_of_its_own(tmp_path: Path) -> None:
    planned = asyncio.run(planned_writes(Workshop(tmp_path), ORDINARY))

    assert [each.tool_class for each in planned] == [ToolClass.WRITE] * len(ORDINARY)


@proves("S21")
def test_the_writes_find_tools_without_a_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProtectedPaths, "locks", lambda *_: False)
    monkeypatch.setattr(ProtectedPaths, "hides", lambda *_, **__: False)

    broken = asyncio.run(passed(Workshop(tmp_path), list(PROTECTED[:10])))

    assert len(broken) > 10


async def passed(shop: Workshop, paths: list[str]) -> list[str]:
    """Return the writes that were not refused, to what is absent and then to what is there."""
    broken = []
    for path in paths:
        for mode in MODES:
            done = await shop.call(
                "write_file", path=path, content="x\n", mode=mode, create_dirs=True
            )
            broken += [f"{mode} {path}"] * (not is_refused(done))
        file = shop.inside / path
        if file.exists() or str(file).startswith(str(shop.home)):
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine\n")
        for tool, more in (
            ("write_file", {"content": "x\n"}),
            ("write_file", {"content": "x\n", "mode": "append"}),
            ("edit_file", {"old": "mine", "new": "x"}),
        ):
            done = await shop.call(tool, path=path, **more)
            broken += [f"{tool} {path}"] * (not is_refused(done))
        broken += [f"changed {path}"] * (file.read_text() != "mine\n")
        file.unlink()
    return broken


async def planned_writes(shop: Workshop, paths: Sequence[str]) -> list[PlannedCall]:
    """Return the plans of writes to these files."""
    plans = [
        await shop.plan("write_file", path=path, content="x\n", create_dirs=True) for path in paths
    ]
    return [each for each in plans if isinstance(each, PlannedCall)]


def is_refused(done: CallOutcome) -> bool:
    """Tell whether a call was denied because of where it would write."""
    code = None if done.error is None else str(done.error.code)
    return code in ("protected_path", "outside_scope")
