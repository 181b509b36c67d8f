"""The names of spans, attributes and enumerations, as they are exported."""
