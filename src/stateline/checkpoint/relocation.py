"""Outputs that lie elsewhere now: one more checkpoint, in which they have their new URLs.

A record names each output by the URL of its root, and files and pieces by names relative to that. So an output that was
moved, or restored in another place, is gone on with by one more checkpoint of the same batch: the same state and the
same files, below another URL. It is decided like any other, by one create-if-absent, so a driver that is still at work
on the root loses the next slot and stops. The root itself is named nowhere in it, and may be moved without a word.

Facts:
- Nothing is decided before all that the checkpoint needs of an output was read in the new place: files that are decided
  and not marked as visible, or their pieces. Rows that wait for their file to roll lie in the root.
- Files that were not marked as visible are finished by the new checkpoint, too: whoever starts next publishes them.
- Older records go on to name the old place until they are retired.
- What is remembered of an output, such as its columns, goes with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from stateline.blob.api import BlobStore
from stateline.checkpoint.api import Checkpoint, FileState, InlineState, OutputState, checkpoint_time
from stateline.checkpoint.store import CheckpointStore
from stateline.checkpoint.table_records import following_tables, table_properties, table_records
from stateline.checkpoint.verify import Finding, Problem, verify_outputs
from stateline.environment import Environment, system_environment
from stateline.errors import ConflictError, CorruptDataError, InvalidInputError, NotFoundError
from stateline.options import check_kind

__all__ = ["Relocation", "kept_states", "relocate_outputs"]

_SHOWN: Final = 10
_ERRORS: Final = {
    Problem.MISSING: NotFoundError,
    Problem.CORRUPT: CorruptDataError,
    Problem.UNREADABLE: InvalidInputError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocation:
    """What :func:`relocate_outputs` found.

    Attributes:
        before: The newest checkpoint.
        record: The one that follows it; ``before`` itself if all outputs were there already.
        bytes_read: What was read in the new places.
    """

    before: Checkpoint
    record: Checkpoint
    bytes_read: int


def relocate_outputs(
    root: CheckpointStore,
    outputs: Mapping[str, BlobStore],
    *,
    dry_run: bool = False,
    environment: Environment | None = None,
) -> Relocation:
    """Decides that outputs lie elsewhere now. Stop the query, and move them, before.

    Repeat it after a failure: where it had happened, nothing is left to do.

    Args:
        root: The root, wherever it is now.
        outputs: Stores of the new places by the name of the operator.
        dry_run: Check everything, and decide nothing.
        environment: Clock and ids.

    Raises:
        NotFoundError: The root has no checkpoint; something that it needs is not in the new place, and the error names
            it.
        CorruptDataError: Something there is not what was written.
        InvalidInputError: No such operator has an output; rows were not handed over yet; the store of a new place
            cannot read pieces that are not published.
        ConflictError: The root remembers other columns of the new place.
        FencedError: A driver went on meanwhile. Stop it first.
    """
    world = environment or system_environment()
    check_kind(root, CheckpointStore, "root")
    newest = root.newest("relocate")
    _check_operators(newest, outputs)
    moved = {
        (output.url, outputs[output.operator].url)
        for output in newest.outputs
        if output.operator in outputs and outputs[output.operator].url != output.url
    }
    if not moved:
        return Relocation(before=newest, record=newest, bytes_read=0)
    published = root.is_published(newest)
    if not published and (newest.deliveries or table_records(newest)):
        raise InvalidInputError(
            "cannot move while rows may not have been handed over yet: another checkpoint would hand them over again",
            operation="relocate",
            subject=f"checkpoint {newest.checkpoint_id} of {root.store.url}",
            hint="Bring the output back, start the query once, so that it hands them over, and move the output then",
        )

    def new_output(output: OutputState) -> OutputState:
        store = outputs.get(output.operator)
        finished = () if published else output.finished
        return replace(output, url=output.url if store is None else store.url, finished=finished)

    record = replace(
        newest.without_deliveries(),
        checkpoint_id=newest.checkpoint_id + 1,
        nonce=world.ids.new_id(),
        created_at=checkpoint_time(world.clock.now(), newest),
        outputs=tuple(map(new_output, newest.outputs)),
        properties=_moved_properties(newest, moved, outputs) | table_properties(following_tables(newest)),
    )
    record = replace(record, states=kept_states(newest))
    report = verify_outputs(record, {store.url: store for store in outputs.values()})
    if report.findings:
        raise _not_there(report.findings, newest)
    if not dry_run:
        root.publish(record)
    return Relocation(before=newest, record=record, bytes_read=report.bytes_read)


def _check_operators(newest: Checkpoint, outputs: Mapping[str, BlobStore]) -> None:
    known = sorted({output.operator for output in newest.outputs})
    for operator in set(outputs) - set(known):
        raise InvalidInputError(
            f"expected operators with an output, {known}, got {operator!r}",
            operation="relocate",
            subject=f"checkpoint {newest.checkpoint_id}",
            hint="Give the name of the operator, as `stateline checkpoint show` has it",
        )


def kept_states(newest: Checkpoint) -> dict[str, InlineState | FileState]:
    """The states of the newest checkpoint, as the next one names them, whose folder is another."""
    return {
        name: replace(state, name=state.object_name(newest.folder), relative=False)
        if isinstance(state, FileState)
        else state
        for name, state in newest.states.items()
    }


def _moved_properties(
    newest: Checkpoint, moved: set[tuple[str, str]], outputs: Mapping[str, BlobStore]
) -> dict[str, str]:
    """The properties, those of outputs under their new URLs."""
    staying = {output.url for output in newest.outputs if output.operator not in outputs}
    leaving = tuple(f" {old}" for old, _ in moved if old not in staying)
    found = {key: value for key, value in newest.properties.items() if not key.endswith(leaving)}
    for old, new in sorted(moved):
        for key, value in newest.properties.items():
            if key.endswith(f" {old}"):
                name = key.removesuffix(old) + new
                if found.setdefault(name, value) != value:
                    raise ConflictError(
                        f"the root remembers {found[name]} as the {name}, and {value} of what was moved there",
                        operation="relocate",
                        subject=f"checkpoint {newest.checkpoint_id}",
                        hint="Readers could not read both in one folder: move the output to a folder of its own",
                    )
    return found


def _not_there(findings: list[Finding], newest: Checkpoint) -> Exception:
    shown = "; ".join(f"{finding.name} is {finding.problem}: {finding.detail}" for finding in findings[:_SHOWN])
    more = f"; and {len(findings) - _SHOWN} more" if len(findings) > _SHOWN else ""
    return _ERRORS[findings[0].problem](
        f"must find all that it needs in the new place, got: {shown}{more}",
        operation="relocate",
        subject=f"checkpoint {newest.checkpoint_id}",
        hint="Move the whole folder, with those that begin with a point. What a store cannot move (blocks and uploads "
        "that are not published) needs the old place: let the query finish there first",
    )
