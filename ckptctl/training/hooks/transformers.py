"""A callback for the Trainer of Hugging Face: what `AfterSave` does, after each of its saves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptctl.errors import MissingExtraError
from ckptctl.training.hooks.after_save import AfterSave

try:
    from transformers import TrainerCallback
except ImportError:
    raise MissingExtraError("transformers is not installed", hint="pip install transformers") from None

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


class CkptctlCallback(TrainerCallback):  # type: ignore[misc]  # it has no types here
    """For ``Trainer(callbacks=[…])``. Give it the options of `AfterSave`; leave ``save_total_limit`` to its policy."""

    def __init__(self, **options: Any) -> None:
        self.after_save = AfterSave(**options)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Look after the checkpoint that was just written."""
        trial = getattr(state, "trial_name", None) or ""  # of a search; one without a name is warned of
        self.after_save(Path(args.output_dir) / trial / f"checkpoint-{state.global_step}")

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Wait for the uploads."""
        self.after_save.ended()
