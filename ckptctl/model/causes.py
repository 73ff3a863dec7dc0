"""What each finding means and what to do about it, by its slug: for reports, and for the reference."""

from __future__ import annotations

from dataclasses import dataclass

_AGAIN = "copy it again from where it was written, or take an older checkpoint"
_ANEW = "write it anew with its library"
_OTHERS = "bring all files of this save together, and only these"


@dataclass(frozen=True, slots=True)
class Cause:
    """What is behind a finding, and what helps."""

    means: str
    cure: str = ""


CAUSES = {
    # bytes that are not a checkpoint, or not all of one
    "truncated": Cause("The file ends too early: a copy, a download or a save was cut off.", _AGAIN),
    "empty": Cause(
        "Nothing was ever written there: the save had just begun, or the disk was full.", "take an older checkpoint"
    ),
    "zeros": Cause("There is room for a file, and only zeros in it: its data never reached the disk.", _AGAIN),
    "git-lfs-pointer": Cause("Git has left a note where the file should be.", "git lfs pull"),
    "web-page": Cause(
        "A download stored a page, such as one that asks to log in.", "download it again, with a token if one is needed"
    ),
    "trailing-bytes": Cause(
        "There are bytes after the end that belong to nothing: two saves mixed, or something appended.", _AGAIN
    ),
    "corrupt": Cause("A rule of the format is broken: overwritten in part, or never valid.", _AGAIN),
    "hole": Cause("Bytes between two tensors belong to none: the offsets of the header are wrong.", _AGAIN),
    "overlap": Cause("Two tensors claim the same bytes: the offsets of the header are wrong.", _AGAIN),
    "limit": Cause(
        "It asks for more depth, time or memory than any real checkpoint: made to harm, or damaged.", _AGAIN
    ),
    "unknown-format": Cause(
        "It is no checkpoint in a format that is read.", "ckptctl inspect says what it is, as far as can be told"
    ),
    "unsupported": Cause("The format is known, and this form of it is not read."),
    "missing-extra": Cause(
        "A package is needed that the plain installation leaves out.", "install the extra that the message names"
    ),
    "unreadable": Cause("The system does not let it be read."),
    "changed": Cause("Somebody wrote to it while it was read.", "look again when the save has returned"),
    # safetensors
    "duplicate-name": Cause("The header has a name twice; readers differ in which one they take.", _ANEW),
    "duplicate-metadata": Cause("A key of the metadata occurs twice.", _ANEW),
    "entry-as-list": Cause("The header says of a tensor in a list what belongs into an object.", _ANEW),
    "dtype-as-object": Cause("The header describes a type where its name belongs.", _ANEW),
    "null-metadata": Cause("The metadata are null, which the reference reader refuses.", _ANEW),
    "leading-space": Cause("There is white space before the header, which not every reader accepts.", _ANEW),
    "unknown-field": Cause("The header says more of a tensor than the format knows: another tool's own."),
    "values-ignored": Cause(
        "The plain values in the metadata do not fit the tensors.", "take the file as its writer left it"
    ),
    # torch
    "data-never-written": Cause(
        "It was saved with skip_data: there is room for the tensors, and no data.", "save it again without skip_data"
    ),
    "unused-records": Cause("The archive holds storages that no tensor uses."),
    "storage-kept-alive": Cause(
        "Views were saved with all of what they are views of.", "ckptctl convert writes what is used"
    ),
    "no-checksums": Cause(
        "It was saved without CRCs: damage to its data cannot be seen.", "ckptctl verify --write makes a digest"
    ),
    "left-out": Cause("Values too deep or too many to be shown were left out."),
    "one-rank": Cause(
        "These are one rank's parts of larger tensors.", "ckptctl consolidate the directory of all ranks"
    ),
    "program": Cause("It holds a program beside the weights."),
    # several files that make a checkpoint
    "unfinished": Cause(
        "A save that did not reach its end: what is written last is missing.",
        "take an older checkpoint; ckptctl prune --remove-incomplete",
    ),
    "damaged": Cause("Its structure is broken; the message says where.", _AGAIN),
    "unknown": Cause("Nobody can tell whether it is whole: something of it could not be looked at."),
    "missing-file": Cause("A file that belongs to it is not there.", "copy it from where it was written"),
    "missing-shard": Cause(
        "The index names a shard that is not there, or not all of it.", "copy it from where it was written"
    ),
    "missing-item": Cause("The metadata and the data files do not agree on what lies where.", _OTHERS),
    "missing-block": Cause("The blocks of a tensor do not make it whole.", _OTHERS),
    "missing-base": Cause(
        "What a delta leaves out is in another file, which is not there.", "bring the base back beside it"
    ),
    "extra-shard": Cause("A shard lies there that the index does not name: two saves in one directory.", _OTHERS),
    "unlisted-tensor": Cause("A shard holds a tensor that the index does not name: they are of two saves.", _OTHERS),
    "duplicate-tensor": Cause("Two shards hold the same tensor.", _OTHERS),
    "several-indexes": Cause("There are several indexes, and nobody says which one counts.", _OTHERS),
    "total-size": Cause("The index says another size than the shards have.", _OTHERS),
    "mixed-ranks": Cause("The files of the ranks are not of one save.", _OTHERS),
    "duplicate-rank": Cause("One rank has several files.", _OTHERS),
    "exchanged": Cause("The files of two ranks have each other's names.", "give each its own name, or copy them again"),
    "not-joined": Cause("The files were not put together to see whether their parts fit."),
    "empty-placeholders": Cause(
        "Tensors of no elements: saved under DeepSpeed ZeRO-3 without gathering.",
        "ckptctl consolidate the directory of DeepSpeed",
    ),
    "step-mismatch": Cause(
        "The name says another step than the content: renamed, copied or overwritten.",
        "trust what is inside; rename it",
    ),
    "bad-json": Cause("A JSON file beside the weights is cut or was never written.", _AGAIN),
    "dangling-pointer": Cause(
        "A link, or a text file such as latest, names a checkpoint that is not there.",
        "ckptctl verify --latest-good RUN",
    ),
    "orphan-digest": Cause("A digest is there without its file."),
    "not-read": Cause("Something lies there that was not looked at: the verdict says nothing of it."),
    # bytes
    "bad-crc": Cause("A record is not what was written: a disk, a cable or memory changed it.", _AGAIN),
    "digest-mismatch": Cause("The file is not the one that the digest was made of.", _AGAIN),
    "no-digest": Cause("A list of digests does not name it, or holds something else.", "ckptctl verify --write"),
    "unverified": Cause(
        "Nothing is on record that its bytes could be compared with.",
        "ckptctl verify --write, when it is known to be right",
    ),
    # what loading runs
    "foreign-global": Cause(
        "Loading it would import something that is not known to be harmless.",
        "--allow-global, if it is your own; else ask its maker",
    ),
    "dangerous-global": Cause("Loading it would run code.", "do not load it; ask its maker for a file without code"),
    "unsafe-pickle": Cause("Loading it would run code, and the pickle breaks off.", "do not load it"),
    # values
    "not-finite": Cause("NaN or Inf: training had diverged, or a cast overflowed.", "take a checkpoint from before"),
    "all-zero": Cause("Nothing but zeros: never trained, or never written."),
    "subnormal": Cause("Only numbers next to zero: a wrong type or byte order, or weights that vanished."),
    "halves-differ": Cause("The weights in fp32 are not those of the copy in 16 bits.", _OTHERS),
    # resume
    "resume": Cause("Training cannot go on from it as was asked.", "ckptctl verify --resume shows what is missing"),
    "missing": Cause("A part of the state of training is not there."),
}
"""By slug. Every finding has one of these."""
