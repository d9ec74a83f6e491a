"""Reads of checked samples: wrong ones are fetched again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from fastdata.remote.ranges import RangeCache, RangeRequest
from fastdata.remote.reader import RangeReader
from fastdata.remote.retries import wait_before


async def read_checked(
    reader: RangeReader,
    cache: RangeCache | None,
    request: RangeRequest,
    take: Callable[[Any, bytes], None],
    present: bytes | None = None,
) -> list[Any]:
    """Read a request's samples; return those that were wrong at every try; runs on the loop.

    Wrong samples are evicted from the cache and fetched again, without the others. Calls
    ``take`` with each right member and its bytes. ``present`` are the request's bytes, if the
    cache had them.
    """
    tries = reader.options.tries if cache is None or not cache.only else 1
    for number in range(0 if cache is not None else 1, tries + 1):
        file, start, stop = request.file, request.start, request.stop
        if cache is not None and (number == 0 or cache.only):
            data = memoryview(present or await cache.read(file, start, stop))
        else:
            data = memoryview(await reader.read(file.url, start, stop))
        wrong = []
        for one in request.members:
            # Copy, so that memory is freed sample by sample.
            part = bytes(data[one.start - start : one.stop - start])
            if one.is_right(part):
                take(one, part)
            else:
                wrong.append(one)
        if not wrong or number == tries:
            break
        reader.counts.refetched += len(wrong)
        start, stop = min(one.start for one in wrong), max(one.stop for one in wrong)
        request = RangeRequest(file, start, stop, wrong)
        if cache is not None and number == 0:
            cache.drop(file, start, stop)
        else:
            await asyncio.sleep(wait_before(number))
    return wrong


def read_all(
    reader: RangeReader, cache: RangeCache | None, requests: Sequence[RangeRequest]
) -> dict[Any, bytes]:
    """Read requests at once; return right members' bytes by key."""
    got: dict[Any, bytes] = {}

    def take(one: Any, data: bytes) -> None:
        got[one.key] = data

    async def read() -> None:
        await asyncio.gather(*(read_checked(reader, cache, one, take) for one in requests))

    reader.run(read())
    return got
