"""The OpenAPI document is true: whatever is asked, in its words or against them, the answer is one that it states."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest.importorskip("fastapi", reason="serving is not installed: pip install -e '.[serve]'")
schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed: pip install -e '.[dev]'")
