"""The keys of a conversation: Enter sends, Alt-Enter breaks the line, Esc and Ctrl-C stop."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prompt_toolkit.application import Application
    from prompt_toolkit.key_binding import KeyBindings


def keys_of(stop: Callable[[], bool]) -> "KeyBindings":
    """Return the keys; `stop` stops what runs, and tells whether there was something to stop."""
    from prompt_toolkit.application.current import get_app
    from prompt_toolkit.enums import DEFAULT_BUFFER
    from prompt_toolkit.filters import Condition, has_focus
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()
    is_typing = has_focus(DEFAULT_BUFFER)
    is_choosing = Condition(lambda: _is_choosing_file(get_app().current_buffer))

    @keys.add("enter", filter=is_typing & ~is_choosing)
    def send(event: Any) -> None:
        buffer = event.current_buffer
        # As in a shell: a backslash at the end says that the line goes on.
        if (
            buffer.document.text_before_cursor.endswith("\\")
            and buffer.document.is_cursor_at_the_end
        ):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("enter", filter=is_typing & is_choosing)
    def choose(event: Any) -> None:
        # The name is in the line already; the sentence around it goes on.
        event.current_buffer.complete_state = None

    @keys.add("escape", "enter", filter=is_typing)
    def break_line(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c", filter=is_typing)
    def give_up(event: Any) -> None:
        if stop():
            return
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    @keys.add("escape", filter=is_typing)
    def stop_what_runs(event: Any) -> None:
        if event.current_buffer.complete_state:
            event.current_buffer.cancel_completion()
        else:
            stop()

    return keys


def answer_keys() -> "KeyBindings":
    """Return the keys of a question: Esc stops the turn as Ctrl-C does."""
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("escape")
    def stop(event: Any) -> None:
        event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return keys


def be_quick(app: "Application[Any]") -> None:
    """Tell a lone Esc from the beginning of a longer key by a short pause."""
    app.ttimeoutlen, app.timeoutlen = 0.05, 0.2


def _is_choosing_file(buffer: Any) -> bool:
    state = buffer.complete_state
    is_chosen = state is not None and state.current_completion is not None
    return is_chosen and not buffer.text.startswith("/")
