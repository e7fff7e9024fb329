"""When a path lies inside a root."""

from pathlib import PurePath, PurePosixPath, PureWindowsPath

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.repos import is_within
from tests.marks import each_case

NAMES = st.lists(st.text(alphabet="ab.", min_size=1, max_size=3), max_size=4)


@each_case(
    ("path", "root", "within"),
    [
        ("/desk", "/desk", True),
        ("/desk/a/b", "/desk", True),
        ("/desk/a", "/", True),
        ("/desktop", "/desk", False),
        ("/desk", "/desk/a", False),
        ("/house/desk", "/desk", False),
        ("/Desk/a", "/desk", False),
    ],
)
def test_a_path_is_within_by_components_never_by_prefix(path: str, root: str, within: bool) -> None:
    assert is_within(PurePosixPath(path), PurePosixPath(root)) is within


def test_another_drive_is_outside() -> None:
    root = PureWindowsPath("C:/desk")

    assert is_within(PureWindowsPath("C:/desk/a"), root)
    assert not is_within(PureWindowsPath("D:/desk/a"), root)


@given(NAMES, NAMES)
def test_within_means_what_relative_paths_mean(path: list[str], root: list[str]) -> None:
    whole, start = PurePath("/", *path), PurePath("/", *root)

    assert is_within(whole, start) == whole.is_relative_to(start)
