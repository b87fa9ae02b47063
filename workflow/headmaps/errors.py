"""The errors headmaps raises: each says what is wrong, where, what was expected and what to do."""


class HeadmapsError(Exception):
    """A problem that the user can act on; shown as its message, without a traceback.

    Args:
        what: the fault in one sentence, naming the thing at fault and what was found.
        where: the file, config key or tensor at fault.
        expected: what would have been right.
        do: the next step for the user.
    """

    def __init__(self, what: str, *, where: str = "", expected: str = "", do: str = "") -> None:
        self.what, self.where, self.expected, self.do = what, where, expected, do
        super().__init__(what)

    def __str__(self) -> str:
        parts = [("where", self.where), ("expected", self.expected), ("do", self.do)]
        lines = [self.what]
        for label, text in parts:
            if text:
                lines.append(f"  {label + ':':<9} {text}".replace("\n", "\n" + " " * 12))
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # keyword-only arguments do not survive the default pickling of exceptions
        state = {"where": self.where, "expected": self.expected, "do": self.do}
        return (_rebuild, (type(self), self.what, state))


def _rebuild(kind: type[HeadmapsError], what: str, state: dict[str, str]) -> HeadmapsError:
    return kind(what, **state)


class ConfigError(HeadmapsError):
    """The configuration is wrong."""


class CheckpointError(HeadmapsError):
    """A checkpoint, or a tensor of it, is missing, malformed or not readable here."""


class DownloadError(CheckpointError):
    """A checkpoint could not be fetched."""


class ArchitectureError(HeadmapsError):
    """The model type is not in the table, or the tensors do not fit it."""


class NumericError(HeadmapsError):
    """A number that should be finite is not, or a computation cannot be carried out."""


class ResultError(HeadmapsError):
    """A result file is missing, stale or altered."""
