"""Holds the shape of the source: short functions, short files, few parameters, words that say why.

A gate that is missed is a reason to split the code, never to raise the number.
"""

import io
import tokenize
from statistics import median, quantiles

from tests.house.source import Function, Module, functions, module, modules
from tests.house.watched import watched

FUNCTION_P90, FUNCTION_CAP = 30, 60
FILE_MEDIAN, FILE_CAP = 120, 400
COMMENTS = (2.0, 5.0)
PARAMETERS = 5
FORBIDDEN = {"utils", "helpers", "common", "base", "impl", "manager", "misc"}

# Files that a program writes, by name; nothing else is exempt from anything here.
GENERATED: frozenset[str] = frozenset()


def written() -> tuple[Module, ...]:
    """Return what people wrote."""
    return tuple(each for each in modules() if each.name not in GENERATED)


def test_nine_functions_in_ten_fit_on_a_screen() -> None:
    lengths = [length(each) for one in written() for each in functions(one.tree)]

    assert quantiles(lengths, n=10)[-1] <= FUNCTION_P90


def test_no_function_is_longer_than_the_cap() -> None:
    assert [fault for one in written() for fault in long_functions(one)] == []


def test_half_of_the_files_are_short() -> None:
    # Packages whose `__init__.py` is only a docstring would flatter the median.
    sizes = [each.lines for each in written() if each.lines > 3]

    assert median(sizes) <= FILE_MEDIAN


def test_no_file_is_longer_than_the_cap() -> None:
    assert [each.name for each in written() if each.lines > FILE_CAP] == []


def test_comments_are_few_and_not_none() -> None:
    lines = sum(each.lines for each in written())
    share = 100 * sum(comment_lines(each.text) for each in written()) / lines

    assert COMMENTS[0] <= share <= COMMENTS[1], f"{share:.2f} % of the lines are comments"


def test_no_function_takes_more_parameters_than_a_hand_has_fingers() -> None:
    assert [fault for one in written() for fault in crowded_functions(one)] == []


def test_every_module_says_what_it_is() -> None:
    assert [each.name for each in written() if not says_what_it_is(each)] == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [each.name for each in written() if FORBIDDEN & words_of(each)] == []


def test_each_gate_finds_what_it_is_there_for() -> None:
    body = "    pass\n" * FUNCTION_CAP
    bad = module(
        "common/session_utils.py",
        f"def long():\n{body}def wide(self, a, b, /, c, *d, e, **f):\n    'x'  # y\n# z\n",
    )

    assert list(long_functions(bad)) == ["common/session_utils.py:1 long has 61 lines"]
    assert list(crowded_functions(bad)) == ["common/session_utils.py:62 wide takes a b c *d e **f"]
    assert words_of(bad) & FORBIDDEN == {"common", "utils"}
    assert not says_what_it_is(bad)


def test_comments_are_counted_in_python_and_in_sql_and_directives_are_not() -> None:
    text = (
        '"""# not this"""\n# because\nA = 1  # beside code\n'
        'B = """\n-- A sentence above a statement.\nSELECT 1\n"""  # noqa: S608\n# ruff: noqa\n'
    )

    assert comment_lines(text) == 2


def test_the_watched_numbers_are_printed() -> None:
    numbers = watched()

    print(*(f"{name}: {value}" for name, value in numbers.items()), sep="\n")
    assert min(numbers["verbs per port"].values()) > 0
    assert {name for name, value in numbers.items() if not value} == set()


def length(function: Function) -> int:
    """Return the lines of a function, decorators aside."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def long_functions(one: Module) -> list[str]:
    """Return each function above the cap."""
    return [
        f"{one.name}:{each.lineno} {each.name} has {length(each)} lines"
        for each in functions(one.tree)
        if length(each) > FUNCTION_CAP
    ]


def crowded_functions(one: Module) -> list[str]:
    """Return each function with too many parameters; every kind counts, `self` does not."""
    found = []
    for each in functions(one.tree):
        names = parameters(each)
        if len(names) > PARAMETERS:
            found.append(f"{one.name}:{each.lineno} {each.name} takes {' '.join(names)}")
    return found


def parameters(function: Function) -> list[str]:
    """Return the names of all parameters but `self` and `cls`."""
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    names += [f"*{given.vararg.arg}"] if given.vararg else []
    names += [each.arg for each in given.kwonlyargs]
    names += [f"**{given.kwarg.arg}"] if given.kwarg else []
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def comment_lines(text: str) -> int:
    """Return how many lines are nothing but a comment, in Python or in a statement's SQL."""
    found = sum(line.startswith("-- ") for line in text.splitlines())
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            found += not token.string.startswith(("# noqa", "# ruff:", "# type:"))
    return found


def says_what_it_is(one: Module) -> bool:
    """Tell whether the module begins with a docstring."""
    first = one.tree.body[0] if one.tree.body else None
    value = getattr(first, "value", None)
    return isinstance(getattr(value, "value", None), str)


def words_of(one: Module) -> set[str]:
    """Return the words that the module's path is made of."""
    return set(one.name.removesuffix(".py").replace("/", "_").split("_"))
