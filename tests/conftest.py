"""Imported before any test module."""

import os
from pathlib import Path

import pytest

import puffer_mlx  # noqa: F401  before MLX, so that every test runs on the BLAS that users get


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The folder of upstream's own numbers: $PUFFER_FIXTURES, else ../shared/fixtures."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "fixtures"
    folder = Path(os.environ.get("PUFFER_FIXTURES", beside))
    if not folder.is_dir():
        pytest.skip(f"no parity fixtures in {folder}; set PUFFER_FIXTURES")
    return folder
