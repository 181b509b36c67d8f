"""Memory that was freed goes back to the system."""

import ctypes
import os
import sys


def give_back() -> None:
    """Give back what the allocator of C keeps of freed memory, where it is one that does not by itself: glibc's."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def give_back_early() -> None:
    """Have the allocator of polars, which reads this when it is loaded, give back at once what is freed."""
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:100,muzzy_decay_ms:0")
