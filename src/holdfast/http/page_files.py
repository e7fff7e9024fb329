"""The page as it was built: one document, and files whose names change with their content."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

# Where the build of `ui/` lies, in a checkout and in a wheel alike.
FOLDER: Final = Path(__file__).parent / "page"
_INDEX: Final = "index.html"
_ASSETS: Final = "assets"
# What a build holds; a browser is told by us and never guesses.
KINDS: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page."""

    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class Page:
    """The document that every address of the page begins with, and what it loads."""

    document: bytes
    assets: Mapping[str, Asset]


@cache
def built_page(folder: Path) -> Page | None:
    """Return what was built into a folder; nothing where nobody has built the page."""
    try:
        document = (folder / _INDEX).read_bytes()
    except FileNotFoundError:
        return None
    found = (path for path in (folder / _ASSETS).iterdir() if path.suffix in KINDS)
    assets = {path.name: Asset(path.read_bytes(), KINDS[path.suffix]) for path in found}
    return Page(document, assets)
