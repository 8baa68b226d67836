"""The parts of a changelog, put together by somebody else: pools of the standard library, uploaders and stores."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from stateline.blob.memory import MemoryStore
from stateline.changelog import (
    BlobUploader,
    ChangelogSettings,
    DuplicatingUploader,
    RetryingExecutor,
    RetryPolicy,
    TaskChangelogRegistry,
    UploadTask,
    batching_scheduler,
)
from stateline.errors import InvalidInputError
from tests.unit.changelog.worlds import memory_store, task_of


class FailsTwice:
    """An action that succeeds at the third attempt."""

    def __init__(self) -> None:
        self.attempts = 0

    def try_execute(self) -> int:
        self.attempts += 1
        if self.attempts < 3:
            raise OSError("not yet")
        return self.attempts

    def discard(self, result: object) -> None:
        """Nothing was made."""

    def complete(self, result: object) -> None:
        """The future tells."""

    def fail(self, error: BaseException) -> None:
        """The future tells."""


@pytest.mark.parametrize("delay", [0, 0.001])
def test_a_pool_of_the_standard_library_runs_uploads(delay: float) -> None:
    ended: Future[int] = Future()
    with ThreadPoolExecutor(2) as pool:
        scheduler = batching_scheduler(
            BlobUploader(memory_store()), ChangelogSettings(persist_delay=delay), executor=pool
        )
        sets = task_of(3, 4).change_sets
        scheduler.upload(
            UploadTask(
                sets, lambda results: ended.set_result(len(results)), lambda _, error: ended.set_exception(error)
            )
        )
        assert ended.result(10) == 2
        scheduler.close()
        assert pool.submit(lambda: 5).result() == 5  # It belongs to whoever made it.


def test_a_pool_of_the_standard_library_runs_attempts() -> None:
    with ThreadPoolExecutor(1) as pool:
        retrying = RetryingExecutor(executor=pool)
        assert retrying.execute(RetryPolicy.fixed(3, 5, 0.001), FailsTwice()).result(10) == 3
        retrying.close()


def test_a_registry_leaves_the_pool_that_it_was_given() -> None:
    store = memory_store()
    store.put("a", b"x")
    with ThreadPoolExecutor(1) as pool:
        registry = TaskChangelogRegistry(store, executor=pool)
        handle = type("Handle", (), {"name": "a"})()
        registry.start_tracking(handle, 1)
        registry.release(handle)
        registry.close()
        assert pool.submit(lambda: 5).result() == 5
    assert not list(store.list(""))


def test_what_is_no_executor_is_refused_where_it_is_given() -> None:
    for make in (
        lambda: batching_scheduler(BlobUploader(memory_store()), executor=object()),  # type: ignore[arg-type]
        lambda: RetryingExecutor(executor=object()),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidInputError, match=r"submit"):
            make()


def test_the_local_side_may_be_an_uploader_a_store_or_a_url() -> None:
    MemoryStore.forget("parts-local")
    for local in (BlobUploader(MemoryStore("parts-local")), MemoryStore("parts-local"), "memory://parts-local"):
        remote = memory_store()
        uploader = DuplicatingUploader(BlobUploader(remote), local)
        task = task_of(3)
        (result,) = uploader.upload([task]).successful[task]
        assert result.local_handle == result.handle
        assert MemoryStore("parts-local").get(result.handle.name) == remote.get(result.handle.name)
        uploader.close()


def test_a_remote_side_whose_bytes_nobody_sees_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="remote"):
        DuplicatingUploader(object(), memory_store())  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError):
        DuplicatingUploader(BlobUploader(memory_store()), 5)  # type: ignore[arg-type]
