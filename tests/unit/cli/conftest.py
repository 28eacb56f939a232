"""What tests of the command line share: the services that it asks about plug-ins start in a moment."""

import pytest


@pytest.fixture(autouse=True)
def _forked(forked_services: None) -> None:
    """Of all tests here."""
