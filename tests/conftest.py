"""Fixtures that several test modules share."""

from pathlib import Path

import pytest
from hypothesis import settings

# a first call compiles, so no deadline; the same examples every time, so that a failure is everybody's
settings.register_profile("moxtrace", deadline=None, derandomize=True)
settings.register_profile("few", settings.get_profile("moxtrace"), max_examples=20)
settings.load_profile("moxtrace")

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real recordings and traces, where the machine has them."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no real data at {SHARED_DATA}")
    return SHARED_DATA
