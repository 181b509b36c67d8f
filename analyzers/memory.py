"""Memory that was freed goes back to the system."""

import ctypes
import sys


def give_back() -> None:
    """Give back what the allocator of C keeps of freed memory, where it is one that does not by itself: glibc's."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)
