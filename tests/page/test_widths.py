"""Nothing is wider than its window: words wrap, code and tables scroll inside themselves."""

import pytest
from playwright.sync_api import Page, expect

from tests.page.stage import PATIENCE_MS, Stage

pytestmark = [pytest.mark.slow, pytest.mark.torture]
expect.set_options(timeout=PATIENCE_MS)

WIDTHS = (375, 700, 1000, 1100)
LONG = "result = " + " + ".join(f"measurement_{number}" for number in range(40))
WORDS = ("measurement", "interpretation", "recommendation", "considerations", "acknowledgement")
ANSWER = f"""It is `{LONG}`, which is this:

```python
{LONG}
```

| {" | ".join(WORDS)} |
|{"---|" * len(WORDS)}
| {" | ".join(WORDS)} |

and {"x" * 300}."""
# What reaches beyond the edge of its window, unless something around it scrolls.
BEYOND = """() => [...document.querySelectorAll("main *")].filter((each) => {
  for (let box = each.parentElement; box; box = box.parentElement) {
    if (box.matches("pre, .table, .facts, dialog")) return false;
  }
  const { right, width } = each.getBoundingClientRect();
  return width > 1 && right > innerWidth + 1;
}).map((each) => `${each.tagName}.${each.className} in ${innerWidth}`)"""
# The height of a table's words, in lines of the table.
LINES = """(cell) => Math.round(
  (cell.clientHeight - 10) / parseFloat(getComputedStyle(cell).lineHeight))"""


def test_a_long_line_widens_no_message_and_a_table_breaks_no_word(stage: Stage) -> None:
    steps = [
        {"text": LONG, "tool_calls": [{"name": "find_text", "arguments": {"pattern": LONG}}]},
        {"text": ANSWER},
    ]
    wide = stage.play("Wide", steps, tools=["find_text"])
    session = stage.begin(wide, LONG.replace(" ", ""), title=LONG[:200])
    page = stage.window(f"/sessions/{session}")
    expect(page.locator(".prose table")).to_be_visible()
    page.locator(".tool summary").click()

    assert [each for width in WIDTHS for each in beyond(page, width)] == []
    page.set_viewport_size({"width": 375, "height": 800})
    assert page.locator(".prose th").evaluate_all(f"(all) => all.map({LINES})") == [1] * len(WORDS)
    page.goto(f"{stage.server.url}/sessions")
    page.get_by_role("link", name="New", exact=True).click()
    expect(page.get_by_label("First message")).to_be_focused()
    box = page.get_by_label("First message").bounding_box()
    assert box is not None
    assert box["height"] > 100


def beyond(page: Page, width: int) -> list[str]:
    """Return what is cut off in a window of this width."""
    page.set_viewport_size({"width": width, "height": 800})
    return list(page.evaluate(BEYOND))
