"""Texts of errors of libraries as part of a message of one line."""


def first_line(error: object) -> str:
    """Return the first line of an error's text, without its full stop; the name of its class if it has no text."""
    return str(error).strip().partition("\n")[0].rstrip(". ") or type(error).__name__


def one_line(error: object) -> str:
    """Return the whole text of an error on one line, without its full stop; the name of its class if it has no text."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
