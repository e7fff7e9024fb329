"""Pages about frameworks show the examples as they are run, and say first what is not promised."""

from tests.docs.blocks import ROOT
from tests.marks import each_case

PAGES = {
    "openai-agents": "openai_session",
    "claude-agent-sdk": "claude_session",
    "langgraph": "langgraph_session",
    "pydantic-ai": "pydantic_session",
}


@each_case("page", PAGES)
def test_the_page_shows_the_example(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    example = (ROOT / "examples" / "frameworks" / f"{PAGES[page]}.py").read_text("utf-8")

    assert example.partition('"""\n\n')[2] in text


@each_case("page", PAGES)
def test_the_first_screen_says_what_is_not_promised(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")

    assert any("**Not promised.**" in line for line in text.splitlines()[:25])


def test_every_example_has_its_page() -> None:
    names = {path.stem for path in (ROOT / "examples" / "frameworks").glob("*.py")}

    assert names == set(PAGES.values())
