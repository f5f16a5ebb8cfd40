"""Reading CIFAR's official pickles without running what a pickle may ask for.

The official files hold a dictionary of byte strings, lists of integers and one ``uint8`` array. A pickle can name any
importable function; this reader resolves only the few names that an array needs, and to stand-ins of its own that
store what they are given, so that not even NumPy's own constructors run on the file's arguments.
"""

import io
import pickle
from typing import Any

import numpy as np

from ...errors import DataError


def read_array_pickle(raw: bytes, name: str) -> dict[str, Any]:
    """Read a pickled dictionary of strings, numbers, lists and ``uint8`` arrays.

    Returns:
        The dictionary with ``str`` keys; strings that Python 2 wrote stay ``bytes``.

    Raises:
        DataError: If the pickle is damaged, names anything else, or is no dictionary.
    """
    try:
        loaded = _ArrayUnpickler(io.BytesIO(raw), encoding="bytes").load()
        if isinstance(loaded, dict):
            return {_text(key): _resolve(value) for key, value in loaded.items()}
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except Exception as error:  # a damaged pickle may raise nearly anything
        raise DataError(f"{name} must be a complete pickle. Got {len(raw)} bytes that do not read ({error}).") from None
    raise DataError(f"{name} must hold a dictionary. Got {type(loaded).__name__}.")


class _Dtype:
    def __init__(self, code: Any, *_: Any) -> None:
        if _text(code) != "u1":
            raise DataError(f"pickled arrays must be uint8 ('u1'). Got {_text(code)!r}.")

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment mean nothing for single bytes."""


class _Array:
    """Stands in for ``numpy.ndarray`` while the pickle is read."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise DataError(f"pickled arrays must hold plain bytes. Got {type(raw).__name__}.")
        self.value = np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if fortran else "C").copy()


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: str, encoding: Any = "latin1") -> bytes:
    return text.encode("latin1")


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,  # how Python 3 writes bytes for Python 2
}


class _ArrayUnpickler(pickle._Unpickler):  # in Python: the one in C makes a table as long as any number in the file
    def find_class(self, module: str, name: str) -> Any:
        found = _ALLOWED.get((module, name))
        if found is None:
            raise DataError(f"pickle must hold plain containers and uint8 arrays only. Got a call of {module}.{name}.")
        return found


def _resolve(value: Any) -> Any:
    return value.value if isinstance(value, _Array) else value


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
