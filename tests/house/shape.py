"""The shape of the source as numbers: sizes, folders, importers, class names, words.

`make shape` prints them; `test_shape.py` holds each below its ceiling.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import quantiles

from tests.house.source import ROOT, Function, Module, functions, modules, nodes

FOLDER_CAP = 25
# Loaded by name from a table, started as a program, or imported by programs of the user.
ENTRY_POINT = re.compile(
    r"cli/(?:commands/|doctor\.py|main\.py)|http/(?:v1|api)/|(?:.*/)?__main__\.py"
    r"|integrations/(?:openai_agents|claude_agent_sdk|langgraph|pydantic_ai)\.py"
    r"|process/(?:agent_supervisor|supervisor/(?:main|wrapper))\.py"
)
WIRING = re.compile(r"(?:app|wiring|open_store|cli/app|http/app)\.py")
# As the whole name of a function that does work, these say neither the action nor the result.
PARTICIPLE = re.compile(
    r"_*(?:asked|begun|built|closed|copied|counted|ended|failed|found|gathered|given|granted|heard"
    r"|joined|judged|kept|lent|made|meant|merged|moved|named|opened|passed|placed|planned|prepared"
    r"|required|said|seen|sent|settled|shown|started|stored|taken|told|written)"
)
# Applied migrations keep their bytes, and generated pages repeat what the source says.
PROSE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "docs/decisions/*.md")


def measure(source: tuple[Module, ...]) -> dict[str, float]:
    """Return every gated number by its name."""
    lengths = [length(each) for one in source for each in functions(one.tree)]
    return {
        "function, 90th percentile": quantiles(lengths, n=10)[-1],
        "function, longest": max(lengths),
        "file, longest": max(each.lines for each in source),
        "folders with too many modules": len(crowded_folders(source)),
        "share of modules with one importer": share_of(lone_modules(source), source),
        "class names defined twice": len(ambiguous_classes(source)),
        "functions named by a participle": len(participle_functions(source)),
        "dialect words in the source": sum(words_in(source).values()),
        "dialect words in the docs": sum(dialect(prose()).values()),
    }


def crowded_folders(source: Iterable[Module]) -> dict[str, int]:
    """Return each folder with more modules than a reader can keep in mind."""
    counts = Counter(str(Path(each.name).parent) for each in named(source))
    return {folder: count for folder, count in counts.items() if count > FOLDER_CAP}


def lone_modules(source: tuple[Module, ...]) -> list[str]:
    """Return the modules that at most one other module imports; re-exports do not count.

    Entry points have no importer to be merged into, and neither has the top of a package, which
    only the wiring or one entry point imports.
    """
    importers: dict[str, set[str]] = defaultdict(set)
    for one in named(source):
        for target in imports(one.tree):
            importers[target].add(one.name)
    return sorted(
        each.name
        for each in named(source)
        if len(users := importers[dotted(each)]) <= 1
        and not ENTRY_POINT.match(each.name)
        and not any(WIRING.match(user) or ENTRY_POINT.match(user) for user in users)
    )


def ambiguous_classes(source: Iterable[Module]) -> dict[str, list[str]]:
    """Return each public class name that several modules define."""
    homes: dict[str, list[str]] = defaultdict(list)
    for one in source:
        for node in one.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(one.name)
    return {name: where for name, where in homes.items() if len(where) > 1}


def participle_functions(source: Iterable[Module]) -> list[str]:
    """Return the functions, properties aside, whose whole name is a participle."""
    return [
        f"{one.name}:{each.lineno} {each.name}"
        for one in source
        for each in functions(one.tree)
        if PARTICIPLE.fullmatch(each.name)
        and not any("property" in ast.unparse(mark) for mark in each.decorator_list)
    ]


def dialect(texts: Iterable[str], *, letter: str = r"\w") -> Counter[str]:
    """Return how often each word of the dialect occurs, not next to a `letter`."""
    listed = (Path(__file__).parent / "words.txt").read_text("utf-8").splitlines()
    words = "|".join(each for each in listed if each and not each.startswith("#"))
    pattern = re.compile(rf"(?<!{letter})(?:{words})(?!{letter})", re.IGNORECASE)
    return Counter(found.lower() for text in texts for found in pattern.findall(text))


def words_in(source: Iterable[Module]) -> Counter[str]:
    """Return how often each word of the dialect occurs in the source, parts of names included."""
    return dialect((each.text for each in source), letter="[A-Za-z]")


def prose() -> Iterator[str]:
    """Yield the text of every page that people read."""
    for pattern in PROSE:
        for path in sorted(ROOT.glob(pattern)):
            yield path.read_text("utf-8")


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield the modules of ours that a module imports, wherever in the file."""
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("holdfast"):
            yield str(node.module)
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def named(source: Iterable[Module]) -> list[Module]:
    """Return the modules that have a name of their own."""
    return [each for each in source if not each.name.endswith("__init__.py")]


def dotted(one: Module) -> str:
    """Return the name by which a module is imported."""
    return "holdfast." + one.name.removesuffix(".py").replace("/", ".")


def share_of(part: list[str], source: tuple[Module, ...]) -> float:
    """Return a part of the named modules in percent."""
    return round(100 * len(part) / len(named(source)), 1)


def length(function: Function) -> int:
    """Return the lines of a function, decorators aside."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def comment_lines(one: Module) -> int:
    """Return how many lines are nothing but a comment, in Python or in a statement's SQL."""
    lines = [each.lstrip() for each in one.text.splitlines()]
    found = sum(line.startswith("-- ") for line in lines)
    quoted = {
        number
        for node in nodes(one.tree)
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno
        for number in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    for number, line in enumerate(lines, 1):
        if line.startswith("#") and number not in quoted:
            found += not line.startswith(("# noqa", "# ruff:", "# type:"))
    return found


def print_shape() -> None:
    """Print lines per package, then every gated number with the worst cases."""
    source = modules()
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for one in source:
        lines[one.home] += one.lines
        files[one.home] += 1
    for home, count in sorted(lines.items()):
        print(f"{home:16} {count:7} lines {files[home]:4} files")
    print(f"{'all':16} {sum(lines.values()):7} lines {sum(files.values()):4} files\n")
    for name, value in measure(source).items():
        print(f"{name}: {value:g}")
    print("crowded:", crowded_folders(source))
    print("one importer:", ", ".join(lone_modules(source)))
    print("several meanings:", ", ".join(sorted(ambiguous_classes(source))))
    print("participles:", ", ".join(participle_functions(source)))
    print("dialect:", dict(words_in(source).most_common(12)))


if __name__ == "__main__":
    print_shape()
