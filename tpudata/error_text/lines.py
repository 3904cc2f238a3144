"""Errors of libraries as parts of a message of one line."""


def first_line(error: BaseException | str) -> str:
    """Return the first line of an error's message, without its full stop.

    An error without a message gives the name of its class, an empty string `no message`.
    """
    return str(error).strip().partition("\n")[0].rstrip(". ") or _describe_empty(error)


def one_line(error: BaseException | str) -> str:
    """Return the whole message of an error on one line, without its full stop.

    An error without a message gives the name of its class, an empty string `no message`.
    """
    return " ".join(str(error).split()).rstrip(".") or _describe_empty(error)


def _describe_empty(error: BaseException | str) -> str:
    return "no message" if isinstance(error, str) else type(error).__name__
