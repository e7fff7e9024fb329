"""`holdfast search`: what was found, for people and for programs, here and at a server."""

import json
import subprocess
from pathlib import Path

from tests.cli.conftest import Cli
from tests.cli.remote_server import Far, serve
from tests.marks import each_case


def test_words_are_found_in_what_was_said(cli: Cli, chatted: str) -> None:
    cli("chat", "repeat after me: the tide is high")

    found = cli("search", "TIDE", "--json").document
    heading, *rows = (line.split("\t") for line in cli("search", "tide").out.splitlines())

    assert [hit["role"] for hit in found["data"]] == ["assistant", "user"]
    assert found["next_cursor"] is None
    assert heading == ["SESSION", "MESSAGE", "AT", "WHO", "FOUND"]
    assert [row[:2] + row[3:] for row in rows] == [
        [hit["session_id"], str(hit["message_sequence"]), hit["role"], hit["snippet"]]
        for hit in found["data"]
    ]


def test_where_nothing_was_found_that_is_said(cli: Cli) -> None:
    plain, listed = cli("search", "tide"), cli("search", "tide", "--json")

    assert (plain.code, plain.out, plain.err) == (0, "", "No matches.\n")
    assert listed.document == {"data": [], "next_cursor": None}


def test_filters_and_pages(cli: Cli, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    cli("repos", "add", str(tree), "--name", "shore")
    cli("chat", "the tide", "--repo", str(tree))
    cli("chat", "a tide", "--title", "Of tides")

    def count(*flags: str, query: str = "tide") -> int:
        return len(cli("search", query, "--role", "user", "--json", *flags).document["data"])

    (session,) = {hit["session_id"] for hit in cli("search", "the tide", "--json").document["data"]}
    assert count() == 2
    assert count("--agent", "holdfast") == 2
    assert count("--repo", "shore") == count("--repo", str(tree)) == 1
    assert count("--session", session[:23]) == 1
    assert count("--tool", "find_text") == 0
    assert count("--since", "2020-01-01") == 2
    assert count("--until", "2020-01-01") == 0
    assert [hit["message_id"] for hit in cli("search", "tides", "--json").document["data"]] == [
        None
    ]
    first = cli("search", "tide", "--role", "user", "--limit", "1", "--json").document
    assert count("--limit", "1", "--cursor", first["next_cursor"]) == 1


@each_case(
    ("flags", "code"),
    [
        (("tide", "--limit", "0"), "invalid_limit"),
        (("tide", "--since", "noon"), "invalid_input"),
        (("tide", "--repo", "nowhere"), "repo_not_found"),
        (("tide", "--agent", "nobody"), "agent_not_found"),
        (("tide", "--cursor", "nonsense"), "invalid_cursor"),
        (("x" * 401,), "invalid_query"),
        (("",), "invalid_query"),
    ],
)
def test_what_cannot_be_searched_for_is_told(cli: Cli, flags: tuple[str, ...], code: str) -> None:
    ran = cli("search", *flags, "--json")

    assert ran.code != 0
    assert json.loads(ran.err.splitlines()[-1])["error"] == code


def test_a_server_is_searched_in_the_same_words(home: Path, cli: Cli, tmp_path: Path) -> None:
    cli("chat", "the tide is high")
    with serve(home) as server:
        far = Far(server, cli, tmp_path / "elsewhere")
        far.both("search", "tide")
        far.both("search", "tide", "--role", "user", "--limit", "1", "--agent", "holdfast")
        far.both("search", "nowhere")
        refused = far("search", "x" * 401, "--json")

    assert refused.error["error"] == "invalid_query"
