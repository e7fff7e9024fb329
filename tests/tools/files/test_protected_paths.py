"""What is never read, what is never written, and what always asks: by every spelling."""

from pathlib import Path

import pytest

from holdfast.domain.tools import FsTier
from holdfast.ports.tools import PlannedCall
from holdfast.process.protected_paths import fold_name, is_private_key
from tests.marks import each_case
from tests.tools.file_fixture import Workshop, result, told

pytestmark = pytest.mark.anyio

PROTECTED = ("denied", "protected_path")

HIDDEN = [
    ".ssh/known_hosts",
    ".aws/config",
    ".gnupg/x",
    ".kube/config",
    ".azure/x",
    ".config/gcloud/x",
    "deep/er/.ssh/x",
    ".env",
    ".env.local",
    ".env.production",
    ".envrc",
    ".netrc",
    "_netrc",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".git-credentials",
    ".gitconfig",
    ".dockercfg",
    ".docker/config.json",
    ".git/config",
    ".git/credentials",
    ".git/config.worktree",
    ".git/modules/sub/config",
    "bare.git/config",
    ".config/git/credentials",
    "id_rsa",
    "id_ed25519",
    "id_ecdsa_sk",
    "id_rsa.bak",
    "id_work",
]
SHOWN = [
    ".env.example",
    ".env.sample",
    ".env.template",
    "environment",
    "config",
    "config.json",
    "credentials",
    ".git/HEAD",
    "id_rsa.pub",
    "id_map.py",
    "ssh/x",
    ".gitignore",
    ".git/config.d/x",
]
# The laxest file systems take these for names that are hidden.
SPELLINGS = [
    ".ENV",
    ".Env.Local",
    ".env.",
    ".env. . ",
    ".env:stream",
    ".env::$DATA",
    ".SSH/x",
    ".ssh./x",
    ".ssh::$DATA/x",
    ".\u017fsh/x",
    ".\u212aube/x",
    ".s\u200bsh/x",
    ".GIT/config",
    ".git/CONFIG",
]
LOCKED = [
    ".git/hooks/pre-commit",
    ".git/HEAD",
    ".git/info/attributes",
    ".Git/x",
    "GIT~1/hooks/x",
    "sub/.git/hooks/x",
    ".git",
    ".holdfast/agents/a.agent.yaml",
    ".bashrc",
    ".bash_profile",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".config/fish/config.fish",
    ".config/git/config",
    ".config/git/ignore",
    "authorized_keys",
    ".config/systemd/user/x.service",
    ".config/autostart/x.desktop",
    "Library/LaunchAgents/x.plist",
    "Documents/PowerShell/x.ps1",
    "Microsoft.PowerShell_profile.ps1",
    "profile.ps1",
]


@each_case("path", HIDDEN + SPELLINGS)
async def test_protected_files_are_not_read_in_any_tier_whether_there_or_not(
    tmp_path: Path, tier: FsTier, path: str
) -> None:
    shop = Workshop(tmp_path, tier=tier)

    absent = await shop.plan("read_file", path=path)
    shop.put(path, "secret\n")
    there = await shop.call("read_file", path=path)

    assert told(absent) == told(there) == PROTECTED
    assert told(await shop.plan("write_file", path=path, content="x")) == PROTECTED


@each_case("path", SHOWN)
async def test_what_only_looks_similar_is_read(shop: Workshop, path: str) -> None:
    shop.put(path, "fine\n")

    assert result(await shop.call("read_file", path=path))["content"] == "fine\n"


@each_case("path", LOCKED)
async def test_what_runs_by_itself_is_not_written_in_any_tier_whether_there_or_not(
    tmp_path: Path, tier: FsTier, path: str
) -> None:
    # A folder for each, because what one case makes would be there for the next.
    shop = Workshop(tmp_path / str(LOCKED.index(path)), tier=tier)

    for mode in ("replace", "create", "append"):
        done = await shop.plan("write_file", path=path, content="x", mode=mode, create_dirs=True)
        assert told(done) == PROTECTED
    file = shop.put(path, "mine\n")
    for tool, arguments in (
        ("write_file", {"content": "x"}),
        ("edit_file", {"old": "mine", "new": "x"}),
    ):
        assert told(await shop.plan(tool, path=path, **arguments)) == PROTECTED
    assert file.read_text() == "mine\n"


@each_case(
    "path", ["/etc/profile", "/etc/profile.d/x.sh", "/etc/cron.d/x", "/etc/sudoers", "/etc/ssh/x"]
)
async def test_what_the_system_starts_is_not_written(tmp_path: Path, path: str) -> None:
    shop = Workshop(tmp_path, tier=FsTier.FULL)

    assert told(await shop.plan("write_file", path=path, content="x")) == PROTECTED
    # In a project it is only the picture of a system.
    inside = await shop.plan("write_file", path=f"rootfs{path}", content="x", create_dirs=True)
    assert isinstance(inside, PlannedCall)


@each_case("path", ["a/../.ssh/x", ".ssh/../.ssh/x", ".ssh/../a/b"])
async def test_going_up_hides_nothing(shop: Workshop, path: str) -> None:
    shop.put("a/b")
    shop.put(".ssh/x")

    assert told(await shop.call("read_file", path=path)) == PROTECTED


async def test_links_hide_nothing(shop: Workshop) -> None:
    shop.put("keys/x.txt", "secret\n")
    shop.put(".env", "secret\n")
    (shop.inside / "innocent").symlink_to(".env")
    (shop.inside / ".ssh").symlink_to("keys")
    (shop.inside / "friendly").symlink_to(".ssh/x.txt")
    (shop.inside / "netrc").symlink_to("keys/.netrc")

    for path in ("innocent", ".ssh/x.txt", "friendly", "netrc"):
        assert told(await shop.call("read_file", path=path)) == PROTECTED, path
    assert result(await shop.call("read_file", path="keys/x.txt"))["content"] == "secret\n"


async def test_a_working_directory_below_a_protected_folder_changes_nothing(
    tmp_path: Path,
) -> None:
    shop = Workshop(tmp_path / ".ssh")
    shop.put("a.txt")

    assert told(await shop.call("read_file", path="a.txt")) == PROTECTED


async def test_holdfasts_own_home_is_protected_by_every_name(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, tier=FsTier.FULL)
    (shop.home / "history.db").write_text("secret")
    (tmp_path / "alias").symlink_to("home")
    (shop.inside / "db").symlink_to("../home/history.db")

    for path in ("../home/history.db", "../HOME/history.db", "../alias/history.db", "db"):
        assert told(await shop.call("read_file", path=path)) == PROTECTED, path
    for path in ("../home/config.toml", "../home/agents/x.yaml", "../Home./x"):
        done = await shop.plan("write_file", path=path, content="x", create_dirs=True)
        assert told(done) == PROTECTED
    assert told(await shop.call("list_directory", path="../home")) == PROTECTED


@each_case(
    "head",
    [
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----",
        "-----BEGIN EC PRIVATE KEY-----",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----",
    ],
)
async def test_a_private_key_is_protected_whatever_its_name(shop: Workshop, head: str) -> None:
    file = shop.put("notes.txt", f"{'#' * 3900}\n{head}\n")

    assert told(await shop.call("read_file", path="notes.txt")) == PROTECTED
    assert told(await shop.plan("write_file", path="notes.txt", content="x")) == PROTECTED
    assert told(await shop.plan("edit_file", path="notes.txt", old="#", new="")) == PROTECTED
    assert head in file.read_text()


async def test_a_certificate_is_no_private_key(shop: Workshop) -> None:
    shop.put("a.pem", "-----BEGIN CERTIFICATE-----\n-----BEGIN PUBLIC KEY-----\n")

    assert result(await shop.call("read_file", path="a.pem"))["total_lines"] == 2


def test_only_the_head_of_a_file_tells_a_key() -> None:
    assert is_private_key(b"x" * 100 + b"-----BEGIN PRIVATE KEY-----")
    assert not is_private_key(b"BEGIN PRIVATE KEY")


@each_case(
    ("name", "compared"),
    [
        ("README", "readme"),
        ("e\u0301", "\u00e9"),
        ("a. . ", "a"),
        ("a:b:c", "a"),
        ("...", ""),
        ("\ufb01le", "file"),
        ("\u200d.env\ufeff", ".env"),
    ],
)
def test_names_are_compared_as_the_laxest_file_system_would(name: str, compared: str) -> None:
    assert fold_name(name) == compared
