"""Errors that a person is meant to read."""


class LocalInferError(Exception):
    """Something the user can understand and act on.

    `message` says what is wrong and where, `hint` what to do about it.
    The command line prints both and exits with `exit_code`; the server turns them into a 4xx answer.
    Anything else that escapes is a bug of ours and keeps its traceback.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class FormatError(LocalInferError):
    """A file is not what it claims to be: truncated, corrupt, or of a kind that we do not read."""


class UnsupportedError(LocalInferError):
    """The request is well-formed, but asks for something that this version cannot do."""


class ContextLengthError(LocalInferError):
    """A prompt, with the tokens that were asked for, does not fit the context."""


class MemoryPlanError(LocalInferError):
    """What was asked for does not fit the memory that is free."""
