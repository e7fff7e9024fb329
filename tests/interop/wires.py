"""Makes fixtures out of what a guest and we have said: masked, and one file for each case."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.interop.installing import cache
from tests.interop.stage import Stage

# What a prompt is about, by how it begins; of the same words, the first time and the second.
PROMPTS: Final[Mapping[str, tuple[str, ...]]] = {
    "hello there": ("turn",),
    "use tool": ("allowed", "refused"),
    "slow": ("cancel",),
    "hello again": ("after-cancel",),
    "write": ("file",),
    "error": ("error",),
    "hello after the error": ("after-error",),
    "hello after the kill": ("killed",),
    "hello after the restart": ("restart",),
}
_LOCAL: Final = re.compile(r"http://127\.0\.0\.1:\d+")
_CHECKED: Final = re.compile(r"/[\w./-]*/holdfast-check-\w+")

Line = dict[str, Any]


def recorded(stage: Stage, folder: Path) -> None:
    """Write the wire of each case into a folder: `who` spoke and the `line` as it was."""
    folder.mkdir(parents=True, exist_ok=True)
    masks = {str(stage.folder): "/stage", str(cache().resolve()): "/programs"}
    for case, lines in split([*_lines(stage.record, masks)]).items():
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (folder / f"{case}.jsonl").write_text(text)


def split(lines: list[Line]) -> dict[str, list[Line]]:
    """Return the lines by their case: a greeting for each life, then what follows each prompt."""
    greetings = iter(("check", "greeting", "second-greeting", "third-greeting"))
    cases: dict[str, list[Line]] = {}
    case = "before"
    for line in lines:
        method = line["line"].get("method") if line["who"] == "client" else None
        if method == "initialize":
            # Further lives are those of a list, which nobody replays.
            case = next(greetings, "list")
        elif method == "session/prompt":
            case = _case(line["line"]["params"]["prompt"][-1]["text"], cases)
        cases.setdefault(case, []).append(line)
    return cases


def _case(prompt: str, known: Mapping[str, object]) -> str:
    names = next((names for begin, names in PROMPTS.items() if prompt.startswith(begin)), ())
    return next((name for name in names if name not in known), "more")


def _lines(record: Path, masks: dict[str, str]) -> Iterator[Line]:
    for raw in record.read_text(errors="replace").splitlines():
        who, _, text = raw.partition(" ")
        for known, mask in masks.items():
            text = text.replace(known, mask)
        try:
            line = json.loads(_CHECKED.sub("/check", _LOCAL.sub("http://model", text)))
        except ValueError:
            continue
        if isinstance(line, dict):
            yield {"who": who, "line": line}
