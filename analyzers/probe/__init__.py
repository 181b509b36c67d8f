"""`otel-cache probe`: asks a live server the requests that tell what its prefix cache does."""
