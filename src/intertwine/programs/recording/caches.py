"""Capture of a model with its caches emptied, so that everything it keeps is computed within the run."""

from collections.abc import Callable

from ..._attributes import Kept
from ...errors import CaptureError
from ..program import Program


def capture_cold(kept: Kept, run: Callable[[], Program]) -> Program:
    """Capture a run without the caches of earlier ones.

    Tensors in attributes, which are neither parameters nor buffers, are taken out. Those that the run puts back are
    caches; with the others (constants of the model) it is run again.
    """
    for delete in (False, True):
        places = kept.empty(lambda place: True, delete)
        while places:
            try:
                program = run()
            except CaptureError:  # the model needs what was taken out, or not there at all
                break
            filled = [place for place in places if kept.holds(place)]
            if len(filled) == len(places):
                return program
            kept.restore()
            places = kept.empty(set(filled).__contains__, delete)
        kept.restore()
    return run()
