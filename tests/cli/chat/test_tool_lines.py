"""Calls as lines."""

from typing import Any

from holdfast.cli.chat.tool_lines import call_line, outcome
from holdfast.domain.messages import ResultStatus, ToolError
from tests.marks import each_case


@each_case(
    ("name", "arguments", "line"),
    [
        ("read_file", {"path": "a.txt"}, "read_file a.txt"),
        ("list_directory", {}, "list_directory ."),
        ("find_text", {"pattern": "x", "path": "src"}, "find_text x in src"),
        ("write_file", {"path": "a.txt", "content": "x" * 999}, "write_file a.txt"),
        ("git_status", {}, "git_status status"),
        ("git_commit", {"message": "one\ntwo"}, "git_commit one"),
        ("run_command", {"command": "ls", "args": ["-l", "a b"]}, "run_command ls -l 'a b'"),
        ("http_request", {"url": "https://a.example"}, "http_request GET https://a.example"),
        ("mcp_books_find", {"title": "a\x1b[31m"}, 'mcp_books_find {"title":"a\\u001b[31m"}'),
        ("checkpoint", {}, "checkpoint"),
        # Somebody else's agent names kinds of calls, and what it does as it likes.
        ("execute", {"title": "rm -r probe"}, "execute rm -r probe"),
        ("execute", {"command": "ls", "cwd": "/srv", "title": "List"}, "execute ls"),
        ("edit", {"filePath": "a.txt", "content": "x"}, "edit a.txt"),
        ("fs.write_text_file", {"path": "a.txt", "digest": "x"}, "fs.write_text_file a.txt"),
        ("execute", {"call_id": 1}, 'execute {"call_id":1}'),
        # What a model leaves out, or gets wrong, is shown as it is.
        ("read_file", {"file": "a"}, 'read_file {"file":"a"}'),
        ("run_command", {"command": 7}, 'run_command {"command":7}'),
    ],
)
def test_a_call_is_its_tool_and_what_it_is_asked_for(
    name: str, arguments: dict[str, Any], line: str
) -> None:
    assert call_line(name, arguments) == line


def test_a_long_argument_is_cut() -> None:
    assert call_line("read_file", {"path": "x" * 300}) == f"read_file {'x' * 199}…"


@each_case(
    ("name", "result", "told"),
    [
        ("read_file", {"start_line": 2, "end_line": 3, "total_lines": 9}, "ok, lines 2 to 3 of 9"),
        ("list_directory", {"entries": [{}]}, "ok, 1 entry"),
        ("find_text", {"matches": []}, "ok, 0 matches"),
        ("write_file", {"bytes_written": 1}, "ok, 1 byte written"),
        ("edit_file", {"replaced": 2}, "ok, 2 places changed"),
        ("run_command", {"exit_code": 3}, "ok, exit code 3"),
        (
            "run_command",
            {"exit_code": -9, "timed_out": True},
            "ok, exit code -9, stopped by the timeout",
        ),
        ("http_request", {"status": 404}, "ok, status 404"),
        ("read_file", {"shortened": "media://x"}, 'ok, {"shortened":"media://x"}'),
        ("mcp_books_find", None, "ok"),
        ("mcp_books_find", "a\nb", "ok, a b"),
    ],
)
def test_a_result_is_told_in_a_word(name: str, result: Any, told: str) -> None:
    assert outcome(name, ResultStatus.OK, result, None) == told


def test_a_refusal_is_told_with_its_reason() -> None:
    error = ToolError(code="outside_scope", message="/etc is\noutside.")

    told = outcome("read_file", ResultStatus.DENIED, None, error)

    assert told == "denied (outside_scope): /etc is outside."
