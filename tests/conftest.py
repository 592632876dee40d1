"""Settings shared by all tests: reproducible examples, and real data only where it is given."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Compilation makes the first example of a shape slow and the next ones fast: no deadline.
settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    print_blob=True,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def data_folder():
    """Folder of real data sets, named by KERNELINF_DATA."""
    folder = os.environ.get("KERNELINF_DATA")
    if not folder:
        pytest.skip("KERNELINF_DATA is not set: it names the folder of the real data sets")
    if not Path(folder).is_dir():
        pytest.fail(f"KERNELINF_DATA names {folder}, which is not a folder")
    return Path(folder)
