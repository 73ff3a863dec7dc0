"""The checks that a person and the continuous integration run alike: ``nox``, or ``nox -s tests``."""

from __future__ import annotations

import os

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "venv"


def _develop(session: nox.Session) -> None:
    """Install the project for development; with ``--no-venv`` that has been done outside."""
    if session.virtualenv.is_sandboxed:
        session.install("-e", ".[dev]")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the test suite."""
    _develop(session)
    session.run("pytest", "-n", "auto", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and the floors."""
    _develop(session)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    """Check types."""
    _develop(session)
    session.run("mypy")


@nox.session(name="property")
def property_(session: nox.Session) -> None:
    """Search for counterexamples much longer than the test suite does; ``-- --minutes 60`` says how long to fuzz.

    The trial of a disk that fills mounts one: it needs root, and is left out otherwise.
    """
    _develop(session)
    session.run("pytest", "-n", "auto", "-m", "hypothesis", env={"HYPOTHESIS_PROFILE": "long"})
    session.run("python", "-m", "tests.trials", "fuzz", *session.posargs)
    for trial in ("errors", "memory", *(["full_disk"] if os.geteuid() == 0 else [])):
        session.run("python", "-m", "tests.trials", trial)


@nox.session
def bench(session: nox.Session) -> None:
    """Print speed and memory as ratios against the named rivals; ``-- table`` writes docs/benchmarks.md."""
    _develop(session)
    session.run("python", "-m", "tests.bench", *session.posargs)


@nox.session
def recovery(session: nox.Session) -> None:
    """Kill the example training at random moments, and demand the losses of one that was left alone.

    As one process, and as two under torchrun. With ``chaos`` in front, crash it at every event of its files too
    (ckpt-chaos from PyPI, some ten minutes for one process and an hour for two).
    """
    _develop(session)
    chaos, options = session.posargs[:1] == ["chaos"], session.posargs
    for ranks, launcher in ((1, ("python",)), (2, ("torchrun", "--standalone", "--nproc-per-node", "2"))):
        train = (*launcher, "docs/examples/train.py", "{run}", "--steps", "200")
        session.run("python", "docs/examples/recovery.py", *options[chaos:], "--", *train)
        if chaos:
            session.install("ckpt-chaos==0.1.8")
            session.run("python", "-m", "tests.chaos", str(ranks))


@nox.session
def frameworks(session: nox.Session) -> None:
    """Train with the real frameworks and the hooks, kill them at random moments, and demand that they resume."""
    _develop(session)
    session.install("transformers>=5", "accelerate", "lightning", "keras>=3")
    session.run("pytest", "tests/frameworks", *session.posargs, env={"KERAS_BACKEND": "torch"})


@nox.session
def docs(session: nox.Session) -> None:
    """Write the generated pages of the documentation anew."""
    _develop(session)
    session.run("python", "-m", "tests.docs_pages", "--write")
    session.run("python", "-m", "tests.console", env={"COLUMNS": "80"})
    session.run("python", "-m", "tests.pictures", "--write")
