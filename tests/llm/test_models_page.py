"""What docs/models.md says: its script plays, its sentences come true, its tables are complete."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.domain.models import OFFLINE, model_of
from holdfast.llm.offline import OfflineToolCall, answer, match_tool_call
from holdfast.llm.providers import PROVIDERS
from holdfast.llm.router import ModelRouter
from holdfast.llm.scripted import ScriptedStep
from holdfast.ports.llm import Failed, FailureKind, LlmTextDelta, LlmTool
from tests.llm.builders import a_request, a_script, answered, heard, said
from tests.marks import each_case

pytestmark = pytest.mark.anyio

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")


def the_example(folder: Path) -> str:
    found = re.search(r"<<'END'\n(.*?)\nEND\n", PAGE, re.DOTALL)
    assert found is not None
    return a_script(folder, found[1], name="greeting.yaml")


@each_case(
    ("text", "ordinal", "reply"),
    [
        ("Hello", 1, "Good day! What can I do for you?"),
        ("Thanks", 2, "You are welcome."),
        ("What is the weather like?", 1, "It is sunny in this script."),
        ("Good bye", 4, "You are welcome."),
        ("Still there?", 13, "There I am again."),
    ],
)
async def test_the_example_answers(tmp_path: Path, text: str, ordinal: int, reply: str) -> None:
    model = the_example(tmp_path)
    ModelRouter().check(model_of(model))

    deltas = await heard(ModelRouter(), a_request(said(text), model=model, ordinal=ordinal))

    assert "".join(delta.text for delta in deltas if isinstance(delta, LlmTextDelta)) == reply


async def test_the_example_fails_where_it_says_so(tmp_path: Path) -> None:
    request = a_request(said("Hello?"), model=the_example(tmp_path), ordinal=3)

    [failed] = await heard(ModelRouter(), request)

    assert isinstance(failed, Failed)
    assert failed.kind is FailureKind.UNAVAILABLE


def rows(heading: str) -> dict[str, str]:
    """Return the first two columns of the table under a heading of columns."""
    table = PAGE.partition(heading)[2].partition("\n\n")[0].splitlines()[2:]
    columns = [[cell.strip() for cell in row.strip("|").split("|")] for row in table]
    return {first: second for first, second, *_ in columns}


def test_the_page_names_every_key_of_a_step_and_every_kind_of_failure() -> None:
    assert list(rows("| key | meaning |")) == [
        f"`{field}`" for field in ScriptedStep.__struct_fields__
    ]
    assert list(rows("| kind | code of the turn |")) == [f"`{kind}`" for kind in FailureKind]


@each_case(
    ("said_text", "reply"),
    [
        (said_text.strip("`"), reply.strip("`"))
        for said_text, reply in rows("| you say | it answers |").items()
        if said_text.count("`") == reply.count("`") == 2
    ],
)
def test_the_offline_model_answers_as_the_page_says(said_text: str, reply: str) -> None:
    request = a_request(said("hi"), answered("Hello!"), said(said_text), model=OFFLINE)

    assert answer(request) == reply


@each_case(("sentence", "call"), rows("| you say | it calls |").items())
def test_the_offline_model_runs_errands_as_the_page_says(sentence: str, call: str) -> None:
    name = call.partition(",")[0].strip("`")
    offered = (LlmTool(name=name, description="", parameters={}),)
    text = sentence.strip("`")

    found = match_tool_call(text, replace(a_request(said(text), model=OFFLINE), tools=offered))

    assert isinstance(found, OfflineToolCall)
    assert found.tool == name


def test_the_page_names_every_provider_with_its_variables() -> None:
    told = {}
    for line in PAGE.partition("| provider | key |")[2].partition("\n\n")[0].splitlines()[2:]:
        names, key, _, base_url = (cell.strip() for cell in line.strip("|").split("|"))
        for name in re.findall(r"`([a-z-]+)`", names):
            variable = key.strip("`").replace("<PROVIDER>", name.upper())
            base_url_variable = re.search(r"`([A-Z_]+)`", base_url)
            told[name] = variable, base_url_variable[1] if base_url_variable else None

    assert told == {
        name: (
            provider.key_variable if provider.needs_key else "none is needed",
            provider.base_url_variable,
        )
        for name, provider in PROVIDERS.items()
    }
