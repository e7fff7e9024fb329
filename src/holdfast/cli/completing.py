"""What Tab completes in a conversation: commands behind a slash, files behind an `@`."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from prompt_toolkit.completion import Completer, Completion

from holdfast.cli.terminal import clean

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    from holdfast.cli.slashes import Slash

_ENTRIES_MOST: Final = 2_000


class ChatCompleter(Completer):
    """Completes the commands of a registry, and the names in a folder."""

    def __init__(self, registry: "Sequence[Slash]", folder: str) -> None:
        self._registry = registry
        self._folder = folder

    def get_completions(
        self, document: "Document", complete_event: "CompleteEvent"
    ) -> Iterable[Completion]:
        """Yield what may stand where the cursor is."""
        text = document.text_before_cursor
        if text.startswith("/") and "\n" not in text:
            yield from self._commands(text)
            return
        word = text.rsplit(None, 1)[-1] if text and not text[-1].isspace() else ""
        if word.startswith("@"):
            yield from self._files(word[1:])

    def _commands(self, text: str) -> Iterator[Completion]:
        name, space, begun = text[1:].partition(" ")
        if not space:
            for each in self._registry:
                if each.name.startswith(name.lower()):
                    yield Completion(
                        f"/{each.name}", -len(text), display=each.usage, display_meta=each.help
                    )
            return
        choices = next((each.choices for each in self._registry if each.name == name.lower()), ())
        yield from (Completion(each, -len(begun)) for each in choices if each.startswith(begun))

    def _files(self, begun: str) -> Iterator[Completion]:
        folder, _, beginning = begun.removeprefix('"').rpartition("/")
        shown = f"{folder}/" if folder or begun.startswith("/") else ""
        for name, is_folder in sorted(_entries(os.path.join(self._folder, shown))):
            is_hidden = name.startswith(".") and not beginning.startswith(".")
            if is_hidden or not name.startswith(beginning):
                continue
            whole = f"{shown}{name}{'/' if is_folder else ''}"
            quote = '"' if " " in whole else ""
            # Closed by the person who types: a folder goes on behind its name.
            yield Completion(f"@{quote}{whole}{'' if is_folder else quote}", -len(begun) - 1)


def _entries(folder: str) -> Iterator[tuple[str, bool]]:
    try:
        with os.scandir(folder) as found:
            for each, _ in zip(found, range(_ENTRIES_MOST), strict=False):
                # A name that would steer the terminal cannot be typed either.
                if each.name == clean(each.name) and "\n" not in each.name:
                    yield each.name, each.is_dir()
    except OSError:
        return
