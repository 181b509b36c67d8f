"""Which traces go to the tracing back end. The evidence file knows nothing of it.

The sampler is the SDK's own, from `OTEL_TRACES_SAMPLER` and its argument. It decides once for a trace: by the caller's
decision where a traceparent came with the request, else by itself.
"""

from collections import OrderedDict
from collections.abc import Sequence

from opentelemetry.context import Context as SdkContext
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, DEFAULT_ON, Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context

from otel_cache.semconv import names
from otel_cache.sidecar.spans import SpanData

TRACES = 65_536
"""Traces whose decision is remembered: for samplers that would not decide alike a second time."""
_OF_STEPS = frozenset([names.STEP, names.EXECUTE])


class TraceSampler:
    """Decides, for all spans of a trace alike.

    Attributes:
        description: the sampler's own description.
        always: whether it keeps every trace that no caller decided about.

    """

    def __init__(self) -> None:
        """Read the environment."""
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler
        self.description = self._sampler.get_description()
        self.always = self._sampler is ALWAYS_ON or self._sampler is DEFAULT_ON
        self._decided: OrderedDict[bytes, bool] = OrderedDict()

    def keeps_all(self, spans: Sequence[SpanData]) -> bool:
        """Return whether the traces of all `spans` go out, as far as that is known without a look at each trace."""
        # By far the most common.
        return self.always and (self._sampler is ALWAYS_ON or False not in [span.context.sampled for span in spans])

    def keeps(self, span: SpanData) -> bool:
        """Return whether the trace of `span` goes out."""
        if self.always:
            return span.context.sampled is not False or self._sampler is ALWAYS_ON
        trace = span.context.trace_id
        decision = self._decided.get(trace)
        if decision is None:
            decision = self._decided[trace] = self._decide(span)
            if len(self._decided) > TRACES:
                self._decided.popitem(last=False)
        return decision

    def _decide(self, span: SpanData) -> bool:
        sampled = span.context.sampled
        trace = int.from_bytes(span.context.trace_id, "big")
        parent = SdkContext()
        if sampled is not None:
            flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
            caller = int.from_bytes((span.parent or span.context).span_id, "big")
            parent = set_span_in_context(NonRecordingSpan(SpanContext(trace, caller, True, flags)), parent)
        name = names.STEP if span.name in _OF_STEPS else names.REQUEST
        result = self._sampler.should_sample(parent, trace, name, SpanKind.INTERNAL, {}, [])
        return result.decision is Decision.RECORD_AND_SAMPLE
