"""A callback for Lightning: what `AfterSave` does, after each save of its ModelCheckpoints.

Lightning tells nobody when a file is whole. So rank 0 looks, after each batch and epoch, for what the ModelCheckpoints
say that they wrote, and once more at the end; they wait for all ranks themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptctl.errors import MissingExtraError
from ckptctl.training.hooks.after_save import AfterSave

try:
    from lightning.pytorch.callbacks import Checkpoint
except ImportError:
    try:
        from pytorch_lightning.callbacks import Checkpoint
    except ImportError:
        raise MissingExtraError("lightning is not installed", hint="pip install lightning") from None

if TYPE_CHECKING:
    from collections.abc import Iterator


class CkptctlCallback(Checkpoint):  # type: ignore[misc]  # it has no types here
    """For ``Trainer(callbacks=[ModelCheckpoint(…), CkptctlCallback(…)])``. Give it the options of `AfterSave`.

    What it does not look after is a file that ModelCheckpoint has deleted again by then: with a policy,
    ``save_top_k=-1`` leaves retention to that.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.after_save = AfterSave(**options)
        self._seen: dict[str, tuple[int, int]] = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Take what is there already for known."""
        self._seen = {path: _stamp(path) for path in _written(trainer)}

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Look after what was written meanwhile."""
        self._look(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Look after what was written meanwhile."""
        self._look(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Look after what was written meanwhile."""
        self._look(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Look once more, and wait for the uploads."""
        if stage == "fit":
            self._look(trainer)
        self.after_save.ended()

    def _look(self, trainer: Any) -> None:
        for path in _written(trainer) if trainer.is_global_zero else ():
            stamp = _stamp(path)
            if stamp != (0, 0) and self._seen.get(path) != stamp:
                self.after_save.alone(path)
                self._seen[path] = (
                    _stamp(path) if Path(path).is_dir() else stamp
                )  # digests are written into directories


def _written(trainer: Any) -> Iterator[str]:
    found: dict[str, None] = {}
    for one in trainer.checkpoint_callbacks:
        single = (getattr(one, name, "") for name in ("best_model_path", "last_model_path"))
        names = (*getattr(one, "best_k_models", {}), *single)
        found |= {str(name): None for name in names if name}
    yield from found


def _stamp(path: str) -> tuple[int, int]:
    """When a file was written, and how long it is; nothing if it is not there."""
    try:
        found = Path(path).stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
