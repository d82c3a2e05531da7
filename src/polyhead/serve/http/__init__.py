"""The HTTP layer: routes, authentication, limits, metrics and pages."""
