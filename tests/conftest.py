"""Property tests judge results, never how long a busy machine takes to draw examples."""

from hypothesis import HealthCheck, settings

settings.register_profile("stateline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("stateline")
