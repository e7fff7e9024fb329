"""What a command is shown of a repository's configuration: nothing that runs, nothing secret."""

from __future__ import annotations

import re

_SECTION = re.compile(r'\[\s*([A-Za-z0-9.-]+)\s*(?:"((?:[^"\\]|\\.)*)")?\s*\]\s*(.*)')
_ENTRY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)\s*(?:=\s*(.*))?")
_SHOWN = {
    "core": {
        *("repositoryformatversion", "filemode", "bare", "logallrefupdates", "ignorecase"),
        *("precomposeunicode", "symlinks", "autocrlf", "eol", "safecrlf", "sparsecheckout"),
        *("sparsecheckoutcone", "sharedrepository", "protecthfs", "protectntfs"),
    },
    "extensions": {
        *("objectformat", "noop", "preciousobjects", "refstorage", "worktreeconfig"),
        "relativeworktrees",
    },
    "user": {"name", "email"},
    "branch": {"remote", "merge", "rebase"},
    "remote": {"url", "fetch", "pushurl"},
    "submodule": {"active", "url"},
}
# A name and perhaps a password before the host.
_CREDENTIALS = re.compile(r"(?<=//)[^/@\s]*@")
_LARGEST = 1 << 20


def shown(content: bytes) -> bytes:
    """Return the harmless entries of a configuration, each on a line of its own.

    What is not understood is left out, and so is a value that goes on in the next line.
    """
    lines = []
    section, is_continued = "", False
    for raw in content[:_LARGEST].decode("utf-8", "surrogateescape").split("\n"):
        line = raw.strip()
        was_continued, is_continued = is_continued, raw.endswith("\\")
        if was_continued or is_continued:
            continue
        found = _SECTION.match(line)
        if found:
            section, line = found[1].lower(), found[3]
            lines.append(f"[{section}]" if found[2] is None else f'[{section} "{found[2]}"]')
        entry = _ENTRY.match(line)
        if entry and entry[1].lower() in _SHOWN.get(section, ()):
            value = _CREDENTIALS.sub("", entry[2] if entry[2] is not None else "true")
            lines.append(f"\t{entry[1]} = {value}")
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")
