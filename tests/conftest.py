"""Fixtures that several test modules share."""

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real recordings and traces, where the machine has them."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no real data at {SHARED_DATA}")
    return SHARED_DATA
