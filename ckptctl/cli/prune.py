"""``ckptctl prune``: keep what matters of a run, delete the rest."""

from __future__ import annotations

from ckptctl.cli import _options as options
from ckptctl.cli import _prune_options as given

HELP = """
Delete the checkpoints of runs that no rule keeps. The plan is printed first, with the reasons. Never deleted: the
newest whole one, what a link or a record such as latest or the best model points at, what is pinned, being written or
unknown.
"""
EPILOG = """
Examples:

  ckptctl prune runs/llama --keep-last 3 --anchor-every 50000 --dry-run

  ckptctl prune runs/llama --keep-best 2 --metric eval_loss --mode min --yes

  ckptctl prune runs/llama --restore checkpoint-104000

A rule that is not given has its default; 0 turns it off. Pin a checkpoint with an empty file: .keep in its directory,
or NAME.keep beside it.

Exit status: 0 done; 1 some could not be removed, or you said no; 2 refused, or could not look; 130 interrupted.
"""


_OFF: tuple[object, ...] = (None, "", "0", 0, [])


def run(  # as many as there are rules
    runs: given.Runs = None,
    *,
    keep_last: given.KeepLast = None,
    keep_best: given.KeepBest = None,
    metric: given.Metric = "",
    mode: given.Better = None,
    anchor_every: given.AnchorEvery = None,
    anchor_mode: given.Anchor = None,
    keep_within: given.KeepWithin = "",
    keep_every: given.KeepEvery = "",
    keep_step: given.KeepStep = None,
    keep: given.Keep = None,
    remove_incomplete: given.RemoveIncomplete = "",
    verify: given.Verified = given.Verification.STRUCTURE,
    max_delete: given.MaxDelete = None,
    dry_run: given.DryRun = False,
    yes: given.Yes = False,
    wait: given.Wait = False,
    no_lock: given.NoLock = False,
    trash_for: given.TrashFor = "0",
    restore: given.Restore = None,
    json: options.Json = False,
    brief: options.Brief = False,
    quiet: options.Quiet = False,
) -> int:
    """Plan all runs, show the plan, ask if there is somebody to ask, and carry it out."""
    from ckptctl.cli._prune_answer import Answer, How, restored
    from ckptctl.ops.prune import Settings

    paths = given.directories(runs)
    policy = given.policy_of(
        keep_last, keep_best, metric, mode, anchor_every, anchor_mode, keep_within, keep_every, keep_step, keep,
        remove_incomplete,
    )  # fmt: skip
    sure_bytes, keep_trash = verify is given.Verification.BYTES, given.duration(trash_for, "--trash-for")
    settings = Settings(
        policy=policy, verify_bytes=sure_bytes, trash_for=keep_trash, wait=wait, lock_needed=not no_lock
    )  # fmt: skip
    if restore is not None:
        given.check_restore(restore, dry_run=dry_run)
        return restored(paths, restore, settings, as_json=json, quiet=quiet)
    rules = (keep_last, keep_best, anchor_every, keep_within, keep_every, keep_step, keep)
    how = How(dry_run=dry_run, sure=yes, explicit=any(rule not in _OFF for rule in rules), most=max_delete)
    return Answer(settings, how, json=json, brief=brief, quiet=quiet).of(paths)
