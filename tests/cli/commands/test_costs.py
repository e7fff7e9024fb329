"""`holdfast costs`: what was spent, as `/v1/costs` says it."""

import json

from tests.cli.conftest import Cli
from tests.marks import each_case

NOTHING = {
    "input_tokens": 0,
    "cached_input_tokens": 0,
    "output_tokens": 0,
    "reasoning_tokens": 0,
}


def test_where_nothing_was_spent_that_is_said(cli: Cli) -> None:
    plain, listed = cli("costs"), cli("costs", "--json")

    assert (plain.code, plain.out, plain.err) == (0, "", "No costs.\n")
    total = {
        "requests": 0,
        "usage": NOTHING,
        "cost_microcents": 0,
        "unpriced_requests": 0,
        "estimated_requests": 0,
    }
    assert listed.document == {"data": [], "total": total, "next_cursor": None}


def test_what_was_spent_is_added_up_by_what_one_likes(cli: Cli, chatted: str) -> None:
    cli("chat", "hello")

    by_model = cli("costs", "--json").document
    named = [line.split("\t")[0] for line in cli("costs").out.splitlines()]
    by_session = cli("costs", "--group-by", "session", "--json").document
    heading, *rows = (
        line.split("\t") for line in cli("costs", "--group-by", "session").out.splitlines()
    )

    assert by_model["total"] == by_session["total"]
    assert named == ["MODEL", "offline:holdfast"]
    (model,) = by_model["data"]
    name = {"key": model["key"], "name": "offline:holdfast"}
    assert {**by_model["total"], **name} == model
    assert model["requests"] == 2
    assert {each["key"] for each in by_session["data"]} >= {chatted}
    assert heading == ["SESSION", "REQUESTS", "INPUT", "OUTPUT", "COST"]
    used = by_model["total"]["usage"]
    assert rows[-1] == [
        "total",
        "2",
        str(used["input_tokens"]),
        str(used["output_tokens"]),
        "$0.0000",
    ]
    assert [row[0] for row in rows[:-1]] == [each["key"] for each in by_session["data"]]


def test_an_agent_is_told_by_its_slug_and_by_its_id(cli: Cli, chatted: str) -> None:
    agent = cli("agents", "show", "holdfast", "--json").document

    (spent,) = cli("costs", "--group-by", "agent", "--json").document["data"]
    shown = [line.split("\t")[0] for line in cli("costs", "--group-by", "agent").out.splitlines()]

    assert (spent["key"], spent["name"]) == (agent["id"], "holdfast")
    assert shown == ["AGENT", "holdfast"]


def test_one_session_agent_or_time_may_be_asked_about(cli: Cli, chatted: str) -> None:
    cli("agents", "create", "--name", "Other")
    cli("chat", "hello", "--agent", "other")

    def requests(*flags: str) -> int:
        return int(cli("costs", "--json", *flags).document["total"]["requests"])

    assert requests() == 2
    assert requests("--session", chatted[:23]) == 1
    assert requests("--agent", "other") == 1
    assert requests("--from", "2020-01-01", "--to", "2020-01-02T00:00Z") == 0
    assert requests("--from", "2020-01-01T00:00+02:00") == 2


def test_what_has_no_price_is_marked(cli: Cli, script: object) -> None:
    assert callable(script)
    model = script(json.dumps([{"text": "hi"}]))
    cli("chat", "hello", "--model", model)

    ran = cli("costs")

    *_, row = (line.split("\t") for line in ran.out.splitlines())
    (spent,) = cli("costs", "--json").document["data"]
    assert spent["unpriced_requests"] == 1
    assert row[-1] == "$0.0000 + unknown"
    assert ran.err == "unknown: some requests have no known price and may have cost more.\n"


@each_case("flag", ["--from", "--to"])
@each_case("time", ["soon", "2026-13-01", ""])
def test_a_time_that_is_none_is_refused(cli: Cli, flag: str, time: str) -> None:
    ran = cli("costs", flag, time, "--json")

    assert (ran.code, ran.error["error"]) == (2, "invalid_input")
    assert ran.error["details"] == {"field": flag}


def test_an_agent_that_is_not_there_is_not_found(cli: Cli) -> None:
    assert cli("costs", "--agent", "nobody", "--json").error["error"] == "agent_not_found"
