"""What all tests share: the corpus, the command line in process, and files made on the spot."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ckptctl.cli.app import main
from ckptctl.model import Finding
from ckptctl.model.causes import CAUSES

CORPUS = Path(__file__).parent / "corpus" / "data"

settings.register_profile("default", max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("long", max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


_made = Finding.__init__


def _known(self: Finding, **fields: object) -> None:
    """Whatever a test provokes is in the reference, with what it means."""
    assert fields["slug"] in CAUSES, fields["slug"]
    _made(self, **fields)


Finding.__init__ = _known


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str


@pytest.fixture(scope="session")
def corpus() -> Path:
    return CORPUS


@pytest.fixture
def ckptctl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the command line as a user would, and return exit status, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        assert "internal error" not in captured.err
        return Result(status, captured.out, captured.err)

    return run
