"""From the evidence to what is exported: sampled, thinned where asked for, and with what was left out told on it."""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID

from otel_cache.semconv import names
from otel_cache.sidecar.resource import ReplicaResource
from otel_cache.sidecar.sampling import TraceSampler
from otel_cache.sidecar.spans import SpanData
from otel_cache.sidecar.thinning import Thinning

EVIDENCE = frozenset([names.LOOKUP, names.STORE, names.EVICT])
MAX_RESOURCES = 1024


class TracingPlane:
    """Chooses the spans that go to the back end.

    Attributes:
        sampled_out: spans that sampling kept back.

    """

    def __init__(self, sampler: TraceSampler, thinning: Thinning | None) -> None:
        """Sample by `sampler`, and thin where `thinning` is given."""
        self.sampled_out = 0
        self._sampler = sampler
        self._thinning = thinning
        self._untold: OrderedDict[object, int] = OrderedDict()
        self._resources: OrderedDict[ReplicaResource, ReplicaResource] = OrderedDict()

    @property
    def thinned(self) -> int:
        """Spans that thinning left out."""
        return self._thinning.dropped if self._thinning is not None else 0

    def select(self, spans: Sequence[SpanData]) -> Sequence[SpanData]:
        """Return the spans that go out. Those of the file are not changed: what is told stands on copies."""
        if self.sampled_out or not self._sampler.keeps_all(spans):
            spans = self._sample(spans)
        return spans if self._thinning is None else list(self._thinning.take(spans))

    def close(self) -> None:
        """Nothing more will come."""
        if self._thinning is not None:
            self._thinning.close()

    def _sample(self, spans: Sequence[SpanData]) -> Sequence[SpanData]:
        sampled: list[SpanData] = []
        for span in spans:
            if self._keeps(span):
                # What was kept back before a span is told on it, not what comes after.
                life = span.resource.attributes.get(SERVICE_INSTANCE_ID)
                sampled.append(self._tell(span, self._untold.pop(life, 0) if span.name in EVIDENCE else 0))
        return sampled

    def _keeps(self, span: SpanData) -> bool:
        if self._sampler.keeps(span):
            return True
        self.sampled_out += 1
        if span.name in EVIDENCE:
            life = span.resource.attributes[SERVICE_INSTANCE_ID]
            self._untold[life] = self._untold.pop(life, 0) + 1
            if len(self._untold) > MAX_RESOURCES:
                self._untold.popitem(last=False)
        return False

    def _tell(self, span: SpanData, dropped: int) -> SpanData:
        """Return the span with what sampling did, for whoever has only the back end to ask."""
        if self._sampler.always and not self.sampled_out:
            return span
        changed = msgspec.structs.replace(span, resource=self._resource(span.resource))
        return changed.with_attribute(names.SAMPLING_DROPPED, dropped) if dropped else changed

    def _resource(self, resource: ReplicaResource) -> ReplicaResource:
        known = self._resources.get(resource)
        if known is None:
            known = ReplicaResource({**resource.attributes, names.SAMPLER: self._sampler.description})
            self._resources[resource] = known
            if len(self._resources) > MAX_RESOURCES:
                self._resources.popitem(last=False)
        return known
