"""Holds that the repository knows no machine and no registry, and that the locks are whole."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.house.source import ROOT
from tests.marks import each_case

LOCKS = ("requirements.lock", "requirements-dev.lock")
# Folders and files that tools leave behind; `.gitignore` names them too.
LEFT_BEHIND = {"__pycache__", "node_modules", "dist", "htmlcov"}
OURS = {".ci", ".gitignore"}

ADDRESSES = {
    "a registry": r"\b(?:pypi|pythonhosted|npmjs|anaconda|jfrog)\.(?:org|com|io)\b",
    "an index": r"--(?:extra-)?index-url[ =]|--find-lin[k]s|--trusted-hos[t]|\bindex-url\s*=",
    "an index of uv": r"\[\[tool\.uv\.index\]\]",
    "a machine's path": r"(?<![\w.~/-])/(?:work|root|tmp)/[\w.-]+",
    "a mirror": r"https?://[\w.:-]+/(?:simple|pypi|npm)\b",
}


def test_no_file_of_ours_names_a_registry_or_a_machine() -> None:
    found = [
        f"{name}:{line} names {what}: {text}"
        for name, content in texts()
        for line, what, text in addresses(content)
    ]

    assert found == []


@each_case(
    "text",
    [
        "see https://" + "pypi" + ".org/project/holdfast",
        "files." + "pythonhosted" + ".org",
        "uv pip install --index-" + "url http://localhost:3141/x",
        "--find-" + "links wheels",
        "http://10.0.0.1:8081/" + "simple",
        "open('/" + "root/notes')",
        "cd /" + "work/main",
        "/" + "tmp/holdfast-1",
    ],
)
def test_an_address_is_found(text: str) -> None:
    assert list(addresses(text)) != []


@each_case(
    "text",
    [
        "--no-emit-index-url",
        "src/work/main.py",
        "~/.local/share",
        "the /v1 routes",
        "the home page",
    ],
)
def test_what_only_looks_like_an_address_is_left_alone(text: str) -> None:
    assert list(addresses(text)) == []


@each_case("name", LOCKS)
def test_every_locked_requirement_is_exact_and_carries_its_hashes(name: str) -> None:
    locked = list(requirements(name))

    assert locked != []
    assert [line for line, hashes in locked if "==" not in line or not hashes] == []


@each_case("name", LOCKS)
def test_a_lock_holds_nothing_but_requirements_hashes_and_reasons(name: str) -> None:
    lines = (ROOT / name).read_text("utf-8").splitlines()
    known = re.compile(
        r"[a-z0-9][a-z0-9.-]*==[^\s]+( ; [^@]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?|    #.*"
    )

    assert [line for line in lines if not known.fullmatch(line)] == []


def test_the_locks_hold_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    running, developing = versions(LOCKS[0]), versions(LOCKS[1])

    assert {name_of(each) for each in project["dependencies"]} <= set(running)
    assert {name_of(each) for each in project["optional-dependencies"]["dev"]} <= set(developing)
    assert running.items() <= developing.items()


def addresses(content: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and text of each address in a content."""
    for what, pattern in ADDRESSES.items():
        for found in re.finditer(pattern, content):
            yield content.count("\n", 0, found.start()) + 1, what, found[0]


def texts(folder: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yield every text file that is ours, by its path below the root."""
    for path in sorted(folder.iterdir()):
        if path.name in LEFT_BEHIND or (path.name.startswith(".") and path.name not in OURS):
            continue
        if path.is_dir():
            yield from texts(path)
            continue
        try:
            yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8")
        except UnicodeDecodeError:
            continue


def requirements(name: str) -> Iterator[tuple[str, int]]:
    """Yield each requirement of a lock with the number of its hashes."""
    for block in re.split(r"\n(?=\S)", (ROOT / name).read_text("utf-8")):
        yield block.splitlines()[0], block.count("--hash=sha256:")


def versions(name: str) -> dict[str, str]:
    """Return the locked version of each package."""
    locked = (line.split(" ", 1)[0].partition("==") for line, _ in requirements(name))
    return {package: version for package, _, version in locked}


def name_of(requirement: str) -> str:
    """Return the package of a requirement, spelled as locks spell it."""
    return re.split(r"[<>=~!; \[]", requirement)[0].lower().replace(".", "-").replace("_", "-")
