"""The library's own errors.

Wrong values raise ``ValueError``, wrong types ``TypeError`` and failed self-checks ``RuntimeError``. The classes here
are for errors that a caller may want to tell apart. Every message reads ``<name> must be <rule>. Got <value>.`` and
says what to do.
"""

__all__ = [
    "CaptureError",
    "CheckpointError",
    "DataError",
    "IntertwineError",
    "MissingExtraError",
    "PathWarning",
    "StorageError",
    "VerificationError",
]


class IntertwineError(Exception):
    """Base of all errors that are intertwine's own."""


class CheckpointError(IntertwineError, ValueError):
    """A checkpoint that is missing, truncated, unsafe or of another architecture."""


class DataError(IntertwineError, ValueError):
    """A data set that is missing, empty or malformed."""


class CaptureError(IntertwineError, RuntimeError):
    """A model whose run could not be captured as a program."""


class VerificationError(IntertwineError, RuntimeError):
    """A symmetry that did not preserve the function on the given inputs."""


class PathWarning(UserWarning):
    """Use of a symmetry of a model whose path depends on the data: it is certified for one path only."""


class StorageError(IntertwineError, OSError):
    """A full disk, a used-up quota or a file system that cannot be written: trying again does not help.

    Args:
        said: The message.
        number: The system's error number, as in ``errno``.
    """

    def __init__(self, said: str, number: int | None) -> None:
        super().__init__(said)
        self.errno = number


class MissingExtraError(IntertwineError, ImportError):
    """An optional package that a feature needs and that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} must be installed for this. Got no such package. Run: pip install '.[{extra}]' in a "
            f"checkout, or 'intertwine[{extra}]'."
        )
