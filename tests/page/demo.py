"""Something to look at: agents, and sessions that have worked, failed, asked and stopped."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.page.stage import Stage
from tests.torture.crew import wait_until

TABLE = """def total(rows):
    result = 0
    for row in rows[1:]:
        result += row.amount
    return result
"""
ANSWER = """The first row is skipped: `rows[1:]` was right while the file had a header, and the
reader removes it now. **Every total is short by one row.**

| file | rows | summed before | summed now |
|---|---|---|---|
| `march.csv` | 31 | 30 | 31 |
| `april.csv` | 30 | 29 | 30 |

I have changed one line:

```python
def total(rows):
    # The reader has taken the header away.
    return sum(row.amount for row in rows)
```

1. The test `test_every_row_counts` fails without the change and passes with it.
2. Nothing else calls `total`.

Shall I commit this?"""

TODAY = datetime.now(UTC)


def _days_ago(days: float) -> str:
    return (TODAY - timedelta(days=days)).isoformat()


# What agents say they did in other places.
ELSEWHERE = tuple(
    {
        "session_id": f"terminal-{number}",
        "actions": [{"type": "edit", "result": "success", "timestamp": _days_ago(began - 0.1)}],
        "checkpoints": [{"name": name, "timestamp": _days_ago(began - length / 2)}],
        "outcomes": [{"type": "feature_unit_created", "id": f"FU-{61 + number}"}],
        "started_at": _days_ago(began),
        "ended_at": _days_ago(began - length),
    }
    for number, (began, length, name) in enumerate(
        ((6.2, 0.5, "spec_complete"), (4.9, 0.8, "tests_green"), (4.6, 0.9, "reviewed"))
    )
)


def prepare(stage: Stage) -> dict[str, str]:
    """Let some sessions happen; returns their ids by name."""
    (stage.repository / "totals.py").write_text(TABLE)
    (stage.repository / "march.csv").write_text("date,amount\n" + "2026-03-01,12\n" * 31)
    repo = stage.ask("POST", "/api/repos", {"path": str(stage.repository)})["id"]
    house = _House(stage, repo)
    found = {
        "greeting": house.play("greeter", "What is (3.5*4)/2?", [{"text": "(3.5*4)/2 = 7"}]),
        "failed": house.play(
            "night-watch", "Summarise what changed since yesterday.", [{"error": "unavailable"}]
        ),
        "asking": house.play("release-clerk", "Write the notes for 0.2.", _asking(), waits=True),
        "fixed": house.play("code-reviewer", "The totals are too small. Why?", _fixing()),
    }
    stage.ask("POST", f"/v1/sessions/{found['greeting']}/close", {})
    _allow(stage, found["fixed"])
    for told in ELSEWHERE:
        stage.ask("POST", "/v1/history", told)
    return found


def _allow(stage: Stage, session: str) -> None:
    """Wait for the one question of a session, answer it, and wait for what comes of that."""
    path = f"/v1/sessions/{session}/approvals"
    wait_until(lambda: bool(stage.ask("GET", f"{path}?state=waiting")["data"]))
    (question,) = stage.ask("GET", f"{path}?state=waiting")["data"]
    stage.ask("POST", f"{path}/{question['id']}", {"decision": "allow"})
    wait_until(lambda: stage.ask("GET", f"/v1/sessions/{session}")["status"] == "completed")


def _fixing() -> list[dict[str, Any]]:
    edit = {"path": "totals.py", "old": "rows[1:]", "new": "rows"}
    return [
        {
            "reasoning": "A total that is too small misses rows. I look at the function first.",
            "text": "I look at how the rows are summed.",
            "tool_calls": [
                {"name": "read_file", "arguments": {"path": "totals.py"}},
                {"name": "find_text", "arguments": {"pattern": "total", "path": "."}},
            ],
        },
        {"tool_calls": [{"name": "edit_file", "arguments": edit}]},
        {"text": ANSWER, "usage": {"input": 18_400, "output": 310}},
    ]


def _asking() -> list[dict[str, Any]]:
    notes = (
        "# 0.2\n\n- Every row counts: totals were short by one.\n- Reads `*.csv` with a header.\n"
    )
    return [
        {
            "text": "I have read the last twelve commits, and write the notes into a new file.",
            "tool_calls": [
                {"name": "write_file", "arguments": {"path": "NOTES.md", "content": notes}}
            ],
        },
        {"text": "Done."},
    ]


class _House:
    def __init__(self, stage: Stage, repo: str) -> None:
        self._stage = stage
        self._repo = repo

    def play(
        self, slug: str, text: str, steps: list[dict[str, Any]], *, waits: bool = False
    ) -> str:
        """Have an agent that plays these steps asked this."""
        name = slug.replace("-", " ")
        prompt = f"You are the {name} of this repository. Be terse."
        tools = ["read_file", "find_text", "edit_file", "write_file"]
        self._stage.play(name.capitalize(), steps, slug=slug, system_prompt=prompt, tools=tools)
        mode = "ask" if waits else "auto"
        return self._stage.begin(slug, text, title=text, repo_id=self._repo, approval=mode)
