"""Failures inside the shipped suites show their values, as those of local tests do."""

import pytest

pytest.register_assert_rewrite(
    "stateline.testing.blob_conformance",
    "stateline.testing.closing_conformance",
    "stateline.testing.recoverable_conformance",
)
