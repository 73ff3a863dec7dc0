"""The pictures in the README: what commands really print in a terminal, as SVG (``python -m tests.pictures --write``)."""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from pathlib import Path
from unittest import mock

from rich.console import Console
from rich.text import Text

from tests.console import ROOT, output_of, prepared

PICTURES = ROOT / "docs" / "pictures"
_WIDTH = 100
SHOWN = {
    "inspect": "ckptctl inspect train_dict.pt",
    "verify": "ckptctl verify train_dict.pt flipped.pt rank_missing calls_print.pt",
    "prune": "ckptctl prune runs/gpt2 --keep-last 1 --anchor-every 20 --dry-run",
}
_LINKED = {
    "train_dict.pt": "torch_save/train_dict.pt",
    "flipped.pt": "damaged/pt_flipped_storage_byte_crc_wrong.pt",
    "rank_missing": "damaged/fsdp_rank_missing",
    "calls_print.pt": "torch_save/calls_print_on_load.pt",
}


def picture(name: str) -> str:
    """Run a command as in a terminal, and return what it shows."""
    before = os.getcwd()
    colours = {"FORCE_COLOR": "1", "COLUMNS": str(_WIDTH), "TERM": "xterm-256color", "LINES": "50"}
    with tempfile.TemporaryDirectory() as made, mock.patch.dict(os.environ, colours):
        os.environ.pop("NO_COLOR", None)
        prepared(Path(made))
        for link, target in _LINKED.items():
            (Path(made) / link).symlink_to(ROOT / "tests" / "corpus" / "data" / target)
        os.chdir(made)
        try:
            shown = output_of(SHOWN[name])
        finally:
            os.chdir(before)
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text(f"$ {SHOWN[name]}", style="bold"))
    console.print(Text.from_ansi(shown.rstrip("\n")))
    drawn = console.export_svg(title="ckptctl", unique_id=name)
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # nothing is fetched to look at it


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for each in SHOWN:
        if "--write" in sys.argv:
            (PICTURES / f"{each}.svg").write_text(picture(each))
        print(each)
