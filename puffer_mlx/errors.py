"""The one exception for all that a person can put right: what was found and expected, a fix."""


class UserError(Exception):
    """Bad input, reported as one message instead of a traceback.

    As a text it has nothing that a terminal obeys: what was found may be a stranger's.

    Args:
        message: what was found and what was expected, naming the key, file or environment.
        hint: how to put it right; printed on a line of its own, prefixed ``hint:``.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.message}\n  hint: {self.hint}" if self.hint else self.message
        return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
