"""Holds the shape of the source: sizes, folders, importers, class names, plain words.

Each number has a ceiling that only goes down until it is at its goal. A gate that would make the
code worse is a wrong gate: change it with a decision record.
"""

from tests.house.shape import (
    FOLDER_CAP,
    ambiguous_classes,
    comment_lines,
    crowded_folders,
    dialect,
    length,
    lone_modules,
    measure,
    participle_functions,
)
from tests.house.source import Function, Module, functions, module, modules
from tests.house.watched import watched

FUNCTION_CAP = 60
FILE_CAP = 600
COMMENTS = (2.0, 5.0)
PARAMETERS = 5
FORBIDDEN = {"utils", "helpers", "common", "base", "impl", "misc"}

# Where each number stands, and where it has to get. Lower the first when the code gets better.
CEILINGS: dict[str, tuple[float, float]] = {
    "function, 90th percentile": (30, 30),
    "function, longest": (60, 60),
    "file, longest": (600, 600),
    "folders with too many modules": (0, 0),
    "share of modules with one importer": (10, 10),
    "class names defined twice": (6, 6),
    "functions named by a participle": (12, 0),
    "dialect words in the source": (0, 0),
    "dialect words in the docs": (0, 0),
}

# Files that a program writes, by name; nothing else is exempt from anything here.
GENERATED: frozenset[str] = frozenset()


def written() -> tuple[Module, ...]:
    """Return what people wrote."""
    return tuple(each for each in modules() if each.name not in GENERATED)


def test_no_number_is_above_its_ceiling() -> None:
    found = measure(written())

    assert {name: value for name, value in found.items() if value > CEILINGS[name][0]} == {}
    assert set(found) == set(CEILINGS)


def test_no_function_is_longer_than_the_cap() -> None:
    assert [fault for one in written() for fault in long_functions(one)] == []


def test_comments_are_few_and_not_none() -> None:
    lines = sum(each.lines for each in written())
    share = 100 * sum(comment_lines(each) for each in written()) / lines

    assert COMMENTS[0] <= share <= COMMENTS[1], f"{share:.2f} % of the lines are comments"


def test_no_function_has_too_many_positional_parameters() -> None:
    assert [fault for one in written() for fault in crowded_functions(one)] == []


def test_every_module_says_what_it_is() -> None:
    assert [each.name for each in written() if not says_what_it_is(each)] == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [each.name for each in written() if FORBIDDEN & words_of(each)] == []


def test_each_gate_finds_what_it_is_there_for() -> None:
    body = "    pass\n" * FUNCTION_CAP
    bad = module(
        "common/session_utils.py",
        f"def long():\n{body}def wide(self, a, b, /, c, d, e, f, *, g):\n    'x'  # y\n# z\n",
    )

    assert list(long_functions(bad)) == ["common/session_utils.py:1 long has 61 lines"]
    assert list(crowded_functions(bad)) == ["common/session_utils.py:62 wide takes a b c d e f"]
    assert words_of(bad) & FORBIDDEN == {"common", "utils"}
    assert not says_what_it_is(bad)


def test_comments_are_counted_in_python_and_in_sql_and_directives_are_not() -> None:
    text = (
        '"""# not this"""\n# because\nA = 1  # beside code\n'
        'B = """\n-- A sentence above a statement.\nSELECT 1\n"""  # noqa: S608\n# ruff: noqa\n'
    )

    assert comment_lines(module("store/a.py", text)) == 2


def test_each_measure_finds_what_it_is_there_for() -> None:
    lone = module("services/lone.py", "class Twice:\n    pass\n")
    user = module(
        "services/user.py", "from holdfast.services.lone import Twice as T\nclass Twice(T): ...\n"
    )
    guess = module(
        "services/guess.py",
        "def _judged(): ...\ndef judge(): ...\n@property\ndef told(self): ...\n",
    )
    many = [module(f"crowd/m{number}.py", "") for number in range(FOLDER_CAP + 1)]

    assert lone_modules((lone, user)) == ["services/lone.py", "services/user.py"]
    assert ambiguous_classes((lone, user)) == {"Twice": ["services/lone.py", "services/user.py"]}
    assert participle_functions([guess]) == ["services/guess.py:1 _judged"]
    assert crowded_folders(many) == {"crowd": FOLDER_CAP + 1}
    assert dialect(["He told nobody.", "Ink, think."]) == {"told": 1, "nobody": 1, "ink": 1}


def test_the_watched_numbers_are_printed() -> None:
    numbers = watched()

    print(*(f"{name}: {value}" for name, value in numbers.items()), sep="\n")
    assert min(numbers["verbs per port"].values()) > 0
    assert {name for name, value in numbers.items() if not value} == set()


def long_functions(one: Module) -> list[str]:
    """Return each function above the cap."""
    return [
        f"{one.name}:{each.lineno} {each.name} has {length(each)} lines"
        for each in functions(one.tree)
        if length(each) > FUNCTION_CAP
    ]


def crowded_functions(one: Module) -> list[str]:
    """Return each function with too many positional parameters; `self` does not count."""
    found = []
    for each in functions(one.tree):
        names = parameters(each)
        if len(names) > PARAMETERS:
            found.append(f"{one.name}:{each.lineno} {each.name} takes {' '.join(names)}")
    return found


def parameters(function: Function) -> list[str]:
    """Return the names of all positional parameters but `self` and `cls`."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def says_what_it_is(one: Module) -> bool:
    """Tell whether the module begins with a docstring."""
    first = one.tree.body[0] if one.tree.body else None
    value = getattr(first, "value", None)
    return isinstance(getattr(value, "value", None), str)


def words_of(one: Module) -> set[str]:
    """Return the words that the module's path is made of."""
    return set(one.name.removesuffix(".py").replace("/", "_").split("_"))
