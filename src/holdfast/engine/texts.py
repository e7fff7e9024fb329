"""Text that came from outside, made into text that a row can hold."""


def storable(text: str) -> str:
    """Replace what no row can hold: NUL, and halves of a surrogate pair that lost each other."""
    if text.isascii() and "\x00" not in text:
        return text
    # Joined first, because a provider may cut between the halves of one character.
    units = text.replace("\x00", "\ufffd").encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "replace")
