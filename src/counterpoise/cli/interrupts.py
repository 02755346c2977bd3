"""Ctrl-C while modules are imported: held until the import is done, since one that is cut short may end in an abort.

Imported before anything that takes time, so it imports nothing of ours.
"""

from __future__ import annotations

import _thread
import signal
import threading
from types import FrameType

IMPORTING = "<frozen importlib"  # the file of Python's code for imports, in a frame
RETRY_SECONDS = 0.05


def hold_while_importing() -> None:
    """Let Ctrl-C interrupt this process between imports only; not where somebody handles it in another way."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _press_again() -> None:
    """Ctrl-C for the main thread, also where it waits for something."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`, or try again soon."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(IMPORTING):
            again = threading.Timer(RETRY_SECONDS, _press_again)
            again.daemon = True
            again.start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt
