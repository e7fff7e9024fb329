"""Texts of YAML that cost more than they look like, to whoever reads them without limits."""

from collections.abc import Iterator


def bombs(size: int) -> Iterator[tuple[str, str]]:
    """Yield each bomb with its name, about as large as `size`."""
    yield from _of_aliases()
    yield from _filled(size)
    yield from _deep(size)
    yield from _broken(size)


def _of_aliases() -> Iterator[tuple[str, str]]:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    yield "a billion laughs", "\n".join(lines)
    yield "a list within itself", "a: &a [*a]"
    yield "a mapping within itself", "&a {b: *a}"
    yield "a key that is its mapping", "&a ? *a : 1"
    yield "merge keys", "a: &a {x: 1}\n" + "".join(f"b{n}: {{<<: *a}}\n" for n in range(500))
    yield "merged lists", "a: &a [1]\nb:\n  <<: [*a, *a]\n"
    for tag in (
        "!!python/object/apply:os.system [id]",
        "!!binary aGk=",
        "!!set {a}",
        "!!omap [a: 1]",
    ):
        yield f"the tag {tag.split()[0]}", f"a: {tag}"
    yield "a tag of its own", "%TAG ! tag:evil,2000:\n---\n!x a"
    yield "a local tag", "a: !include /etc/passwd"


def _filled(size: int) -> Iterator[tuple[str, str]]:
    pieces = {
        "numbers": ("[", "1,", "1]"),
        "lists": ("[", "[],", "]"),
        "mappings": ("[", "{},", "]"),
        "items": ("", "- 1\n", ""),
        "quotes": ("", "'", ""),
        "quoted": ("[", '"",', "]"),
        "escapes": ('"', "\\n", '"'),
        "words": ("", "a ", ""),
        "words on lines": ("", "a\n", ""),
        "blanks": ("", " ", ""),
        "empty lines": ("", "\n", ""),
        "comments": ("", "#\n", ""),
        "a comment": ("", "#", ""),
        "a text of lines": ("a: |\n", "  x\n", ""),
        "a folded text": ("a: >\n", "  x\n", ""),
        "an empty text": ("a: |+\n", "\n", ""),
        "digits": ("", "9", ""),
        "decimals": ("1.", "9", ""),
        "an exponent": ("1e", "9", ""),
        "documents": ("", "---\n", ""),
        "directives": ("", "%a\n", ""),
        "percents": ("", "%", ""),
        "anchors": ("", "&", ""),
        "stars": ("", "*", ""),
        "exclamations": ("", "!", ""),
        "a key": ("", "a", ": 1"),
        "equal keys": ("{", "a: 1, ", "}"),
    }
    for name, (begin, piece, end) in pieces.items():
        yield f"nothing but {name}", begin + piece * (size // len(piece)) + end
    yield "many keys", "".join(f"k{n}: 1\n" for n in range(size // 10))


def _deep(size: int) -> Iterator[tuple[str, str]]:
    for name, piece in (("lists", "["), ("mappings", "{a: "), ("items", "- "), ("keys", "? ")):
        yield f"deep {name}", piece * (size // len(piece))
    yield "deep and closed", "[" * 5_000 + "]" * 5_000
    yield "deep by indentation", "\n".join(f"{' ' * n}a:" for n in range(300))
    yield "too large by a byte", "#" * ((2 << 20) + 1)


def _broken(size: int) -> Iterator[tuple[str, str]]:
    yield "a text without an end", '"' + "a" * size
    yield "a list without an end", "[" + "a, " * (size // 3)
    yield "a control character", "a: \x07"
    yield "a character beyond all", 'a: "\\UFFFFFFFF"'
    yield "a version of many digits", f"%YAML 1.{'9' * size}\n---\n"
    yield "a tag that is declared at length", f"%TAG ! {'!' * size}\n---\na"
    yield "half a character", 'a: "\\ud800"'
