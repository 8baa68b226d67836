"""A driver in a process of its own: ``python checkpoint_process.py ROOT UNTIL_ID LABEL``.

Makes checkpoints until ``UNTIL_ID`` exists, starting anew whenever another driver was first; writes ``id nonce`` for
each one that it was told is its own.
"""

import itertools
import sys

from stateline.blob.checksum import crc32c
from stateline.blob.local import LocalStore, LocalStoreSettings
from stateline.checkpoint import Checkpoint, CheckpointStore, FileState, layout
from stateline.errors import FencedError, NotFoundError

layout.FLOOR_BLOCK = 4


def main(path: str, until_id: int, label: str) -> None:
    blobs = LocalStore(path, LocalStoreSettings(fsync=False))
    counter = itertools.count()
    while True:
        store = CheckpointStore(blobs)
        try:
            if work(store, until_id, label, counter):
                return
        except (FencedError, NotFoundError):
            continue


def work(store: CheckpointStore, until_id: int, label: str, counter: "itertools.count[int]") -> bool:
    newest = store.latest()
    while newest is None or newest.checkpoint_id < until_id:
        checkpoint_id = 0 if newest is None else newest.checkpoint_id + 1
        nonce = f"{label}-{checkpoint_id}-{next(counter)}"
        if newest is not None:  # A task reads what its checkpoint starts from.
            for state in newest.states.values():
                if isinstance(state, FileState):
                    store.store.get(state.name)
        store.store.put_if_absent(f"shared/{nonce}", nonce.encode())
        fresh = FileState(name=f"shared/{nonce}", relative=False, size=len(nonce), crc32c=crc32c(nonce.encode()))
        kept = {} if newest is None else {key: newest.states[key] for key in list(newest.states)[-1:]}
        newest = store.publish(
            Checkpoint(
                checkpoint_id=checkpoint_id,
                batch_id=checkpoint_id,
                query_id="query",
                offsets_digest="digest",
                max_parallelism=1,
                parallelism=1,
                nonce=nonce,
                created_at=0.0,
                states={**kept, nonce: fresh},
            )
        )
        sys.stdout.write(f"{checkpoint_id} {nonce}\n")
        sys.stdout.flush()
        store.retain(2)
    return True


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
