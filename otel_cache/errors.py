"""Every error that a user can meet.

OtelCacheError              exit code 2
+-- UsageError              a flag, a path or a setting that cannot be right
+-- CaptureError            a capture that cannot be read at all
|   +-- StorageError        object storage that does not give what it was asked for
+-- ScenarioError           a lab scenario that says something impossible
+-- FetchError              a tracing back end that cannot be asked, or has nothing
+-- LabError                vLLM is missing or refused the scenario
+-- ProbeError             a server that cannot be probed
+-- RecordError             a record or a frame that is not of this protocol
+-- BindingError            vLLM lacks something that the instrumentation needs
"""


class OtelCacheError(Exception):
    """The root: the message says what is wrong, where, and what to do."""

    exit_code = 2


class UsageError(OtelCacheError):
    """A flag, a path or a setting that cannot be right."""


class CaptureError(OtelCacheError):
    """A capture that cannot be read at all."""


class StorageError(CaptureError):
    """Object storage that does not answer, or refuses: what it holds may be a capture all the same."""


class ScenarioError(OtelCacheError):
    """A lab scenario with an unknown key or an impossible value."""


class FetchError(OtelCacheError):
    """A tracing back end that cannot be asked, refuses, or has nothing to give."""


class LabError(OtelCacheError):
    """vLLM is missing, or it refused what the scenario asks of it."""


class ProbeError(OtelCacheError):
    """A server that cannot be probed: it is down, slow, busy, or lacks what the probe needs."""


class RecordError(OtelCacheError):
    """A frame or a record that is not of this protocol."""


class BindingError(OtelCacheError):
    """vLLM lacks a method or a parameter that the instrumentation needs."""
