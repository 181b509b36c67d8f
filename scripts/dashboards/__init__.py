"""Grafana's dashboards and Prometheus' rules, from the registry of names. See `__main__.py`."""
