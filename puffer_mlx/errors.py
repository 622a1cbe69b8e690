"""Define UserError, the exception for errors that a user can fix."""


class UserError(Exception):
    """Raised for errors that a user can fix; printed as a message instead of a traceback.

    Control characters in the text are escaped, because it may quote untrusted files.

    Args:
        message: Error with the key, file or environment, the value found and the expected one.
        hint: Suggested fix, printed on a separate line after ``hint:``.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.message}\n  hint: {self.hint}" if self.hint else self.message
        return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
