"""The command line. Commands load torch and other heavy modules only when they run, so that help is instant."""

import signal
import threading

_alone = threading.current_thread() is threading.main_thread()
_before = signal.getsignal(signal.SIGINT)
if _alone and _before is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while this loads ends it without a traceback

from .app import app, main  # noqa: E402

if _alone:
    signal.signal(signal.SIGINT, _before)

__all__ = ["app", "main"]
