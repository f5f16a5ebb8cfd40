"""Data sets by name: ``load("cifar10:PATH")``."""

from .cifar import load_cifar
from .digits import load_digits
from .images import load_images
from .npz import load_npz
from .parquet import load_parquet
from .splits import DataSplits

FORMS = ("digits", "cifar10[:PATH]", "cifar100[:PATH]", "parquet:PATH", "npz:PATH", "images:DIR")


def load(spec: str = "digits") -> DataSplits:
    """Load a data set into memory.

    Args:
        spec: ``digits``, ``cifar10[:PATH]``, ``cifar100[:PATH]``, ``parquet:PATH``, ``npz:PATH`` or ``images:DIR``.

    Returns:
        Training, validation and test split. The choice of the validation split is fixed, so that all networks are
        judged on the same examples.

    Raises:
        ValueError: If the form is unknown, or a path is missing or given where none belongs.

    Examples:
        >>> load("digits").classes[:3]
        ('0', '1', '2')
    """
    kind, _, path = spec.partition(":")
    if kind == "digits" and not path:
        return load_digits()
    if kind == "cifar10":
        return load_cifar("cifar10", path or None)
    if kind == "cifar100":
        return load_cifar("cifar100", path or None)
    loaders = {"parquet": load_parquet, "npz": load_npz, "images": load_images}
    if kind not in loaders or not path:
        raise ValueError(f"data must be one of {', '.join(FORMS)}. Got {spec!r}.")
    return loaders[kind](path)
