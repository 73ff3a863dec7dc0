"""What tests of saves in the background share."""

from __future__ import annotations

import threading

import pytest

from ckptctl.training import in_background


@pytest.fixture
def begin(monkeypatch):
    """Holds writing back until it is set."""
    event, write = threading.Event(), in_background.write_live

    def late(live, metadata, ranks, base=None):
        event.wait(20)
        return write(live, metadata, ranks, base)

    monkeypatch.setattr(in_background, "write_live", late)
    return event
