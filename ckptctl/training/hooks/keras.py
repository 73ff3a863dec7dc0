"""A callback for Keras: what `AfterSave` does, after each save of its ModelCheckpoint."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptctl.errors import MissingExtraError
from ckptctl.training.hooks.after_save import AfterSave

try:
    from keras.callbacks import Callback
except ImportError:
    raise MissingExtraError("keras is not installed", hint="pip install keras") from None

if TYPE_CHECKING:
    import os

_SUFFIXES = (".keras", ".h5")


class CkptctlCallback(Callback):  # type: ignore[misc]  # it has no types here
    """For ``model.fit(callbacks=[ModelCheckpoint(…), CkptctlCallback(directory, …)])``, after the ModelCheckpoint.

    Parameters
    ----------
    directory
        That into which the ModelCheckpoint writes.
    options
        Those of `AfterSave`.
    """

    def __init__(self, directory: str | os.PathLike[str], **options: Any) -> None:
        super().__init__()
        self.directory, self.after_save = Path(directory), AfterSave(**options)
        self._seen: dict[Path, tuple[int, int]] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        """Take what is there already for known."""
        self._seen = self._there()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Look after what was written meanwhile."""
        self._look()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Look after what was written meanwhile."""
        self._look()

    def on_train_end(self, logs: Any = None) -> None:
        """Look once more, and wait for the uploads."""
        self._look()
        self.after_save.ended()

    def _look(self) -> None:
        for path, stamp in sorted(self._there().items(), key=lambda one: one[1]):
            if self._seen.get(path) != stamp:
                self._seen[path] = stamp
                self.after_save.alone(path)

    def _there(self) -> dict[Path, tuple[int, int]]:
        """Return the models in the directory: when each was written, and how long it is."""
        found = {}
        with contextlib.suppress(OSError):  # training goes on; the next look finds what is there
            for path in self.directory.iterdir() if self.directory.is_dir() else ():
                if path.suffix in _SUFFIXES and not path.name.startswith("."):
                    with contextlib.suppress(OSError):  # deleted meanwhile
                        status = path.stat()
                        found[path] = status.st_mtime_ns, status.st_size
        return found
