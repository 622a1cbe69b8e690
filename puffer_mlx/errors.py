"""The exception for errors that a user can fix."""


class UserError(Exception):
    """Error that a user can fix, printed as a message instead of a traceback.

    Control characters are escaped in its text, because file contents may be untrusted.

    Args:
        message: Found and expected value, with the key, file or environment.
        hint: Suggested fix, printed on a separate line with the prefix ``hint:``.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.message}\n  hint: {self.hint}" if self.hint else self.message
        return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
