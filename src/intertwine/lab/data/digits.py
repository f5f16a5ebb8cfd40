"""The 1,797 handwritten digits that come with scikit-learn: 8x8 pixels, no download."""

import torch

from .splits import DataSplits, Split, make_splits


def load_digits() -> DataSplits:
    """Load scikit-learn's digits, 0 to 1, as 1,295 training, 143 validation and 359 test examples, stratified.

    Examples:
        >>> load_digits()
        DataSplits('digits', train=1295, validation=143, test=359, shape=(1, 8, 8), classes=10)
    """
    from sklearn.datasets import load_digits as sklearn_digits

    bunch = sklearn_digits()
    images = torch.from_numpy(bunch.images).to(torch.float32).unsqueeze(1) / 16
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    return make_splits("digits", Split(images, labels), classes=tuple(str(d) for d in range(10)))
