"""Compare what the pages say about the version with the package."""

import re

from holdfast import __version__
from tests.docs.blocks import ROOT

README = (ROOT / "README.md").read_text("utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_changelog_begins_with_what_is_not_released_yet() -> None:
    versions = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)

    assert versions[0] == "Unreleased"
    assert f"## {__version__}" not in CHANGELOG or versions[1].startswith(__version__)


def test_the_readme_speaks_of_the_version_that_is_being_built() -> None:
    assert f"Version {__version__.rpartition('.')[0]} is not released yet" in README
