"""Several workers, one result: each writes some of the files, and the first one commits when all are there.

They need nothing of each other but the place that they write to: a file that is finished has a marker, in a directory
beside the files, with its digest and with what it was planned from. A worker that dies leaves no result, and its
finished files for the next attempt.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError, ExistsError, UsageError
from ckptctl.rewrite.carry_out import Outcome, carry_out
from ckptctl.rewrite.committed import commit, is_committed
from ckptctl.rewrite.markers import Markers
from ckptctl.rewrite.outputs import Outputs
from ckptctl.rewrite.source_digests import SourceDigests
from ckptctl.rewrite.targets import check_outputs
from ckptctl.storage import has_file, is_remote
from ckptctl.storage.share import Share

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckptctl.model import Contents
    from ckptctl.rewrite.options import Options
    from ckptctl.rewrite.outputs import OutputFile


def written_out(
    outputs: Outputs, inputs: tuple[Contents, ...], options: Options, progress: Callable[[int], None]
) -> Outcome:
    """Write what was planned, alone or as one worker of several.

    Raises
    ------
    CkptctlError
        The source is not what its digest says, or it could not be done; nothing was changed.
    """
    if options.share:
        return _shared_out(outputs, inputs, options, progress)
    return carry_out(outputs, inputs, options, progress)


def _shared_out(
    outputs: Outputs, inputs: tuple[Contents, ...], options: Options, progress: Callable[[int], None]
) -> Outcome:
    """Write the files that are this worker's; as the first one, wait for those of the others, and write the index.

    Raises
    ------
    CkptctlError
        It could not be done, or another worker could not; there is no index then.
    """
    share = options.share or Share(0, 1)
    markers = Markers(outputs, inputs)
    mine = owned(outputs.files, share)
    start, overflows, compared, whole = time.monotonic(), dict[str, int](), 0, False
    if share.index and not mine:
        return Outcome(files=(), seconds=0, verified=0, overflows={})
    markers.begin(share)
    try:
        digests = SourceDigests(inputs if options.check else ())
        digests.compare(_planned_from(outputs, inputs))
        done = {file.path: found for file in mine if (found := markers.taken_up(file, check=options.check))}
        todo = [file for file in mine if file.path not in done]
        progress(sum(one.nbytes for one in done.values()))
        # What has no marker any more may be part of a result that was committed meanwhile; the first worker knows.
        whole = bool(share.index and todo) and is_committed(outputs)
        _check_unhurt(todo if whole else [], markers)
        for file in todo if not whole else ():
            alone = replace(options, share=None, force=markers.claim(file))
            made = carry_out(Outputs(files=(file,)), _read_by((file,), inputs), alone, progress, digests)
            overflows |= made.overflows
            done[file.path] = markers.finish(made.files[0], made.verified)
        compared = digests.compare(_read_by(mine, inputs))
        if share.index == 0:
            files = markers.all(progress, owners_of(outputs.files, share), anew=options.resume, check=options.check)
            commit(outputs, markers)
        else:
            files = tuple(done.values())
    except BaseException as error:
        markers.fail(share, error)
        raise
    finally:
        markers.leave()
        markers.tidy(committed=whole)
    seconds, verified = time.monotonic() - start, sum(markers.verified.values())
    return Outcome(files=files, seconds=seconds, verified=verified, overflows=overflows, compared=compared)


def _check_unhurt(files: list[OutputFile], markers: Markers) -> None:
    """Refuse what was finished and is not that any more, where the result is there by now."""
    hurt = next((file for file in files if markers.finished(file)), None)
    if hurt:
        raise CorruptError(f"{hurt.path}: it is not what was finished, and the result is there by now")


def _read_by(files: tuple[OutputFile, ...], inputs: tuple[Contents, ...]) -> tuple[Contents, ...]:
    """Return the inputs that some files are made of: each worker makes sure of its own."""
    sources = [item.source for file in files for item in file.items.values()]
    every = [tensor for source in sources for tensor in (source, *source.parts)]
    read = {id(piece.range.file) for tensor in every for piece in (*tensor.pieces, *tensor.copies)}
    return tuple(one for one in inputs if id(one.range.file) in read)


def _planned_from(outputs: Outputs, inputs: tuple[Contents, ...]) -> tuple[Contents, ...]:
    """Return the inputs that nothing is copied from: they say what the outputs are."""
    read = {id(one) for one in _read_by(outputs.files, inputs)}
    return tuple(one for one in inputs if id(one) not in read)


def owned(files: tuple[OutputFile, ...], share: Share) -> tuple[OutputFile, ...]:
    """Return the files of one worker."""
    owners = owners_of(files, share)
    return tuple(file for file in files if owners[file.path] == share.index)


def owners_of(files: tuple[OutputFile, ...], share: Share) -> dict[Path, int]:
    """Return which worker each file is of."""
    owners = share.owners([one.writer.nbytes for one in files], [one.path.name for one in files])
    return {file.path: owner for file, owner in zip(files, owners, strict=True)}


def checked(outputs: Outputs, inputs: tuple[Contents, ...], options: Options) -> int:
    """Make sure, before anything is written, that all of it can be; return how many bytes it will be.

    Of several workers, each looks at its own files: what others have finished meanwhile is no obstacle.

    Raises
    ------
    ExistsError
        There is something that is not to be replaced; or an earlier attempt has finished files.
    NoSpaceError
        It does not fit.
    """
    if not options.share:
        return check_outputs(outputs, inputs, options)
    if options.force:
        raise UsageError(
            "--force: several workers do not replace what is there",
            hint="remove it first, or give another name with -o",
        )
    _check_shared(outputs, inputs, options)
    remote = is_remote(outputs.files[0].path)
    return 0 if remote else check_outputs(outputs, inputs, replace(options, force=True))


def _check_shared(outputs: Outputs, inputs: tuple[Contents, ...], options: Options) -> None:
    markers = Markers(outputs, inputs)
    share = options.share or Share(0, 1)
    mine = {file.path for file in owned(outputs.files, share)}
    if share.index and not mine:
        return
    hint = "remove it first, or give another name with -o"
    if outputs.index and has_file(outputs.index):
        committed = options.resume and is_committed(outputs)
        if share.index and committed:
            return  # what it is made of the first worker knows
        if not committed or not all(map(markers.finished, outputs.files)):
            raise ExistsError(f"{outputs.index}: exists already: a result is complete", hint=hint)
    for file in outputs.files:
        finished = markers.finished(file)
        if finished and file.path in mine and not options.resume:
            raise ExistsError(f"{file.path}: an earlier attempt has finished it", hint="--continue takes it up")
        if finished or file.path not in mine or not has_file(file.path):
            continue
        if not options.resume:
            raise ExistsError(f"{file.path}: exists already", hint=hint)
        if not markers.claimed(file):
            message = f"{file.path}: exists already, and no unfinished attempt at this result has written it"
            raise ExistsError(message, hint=hint)
