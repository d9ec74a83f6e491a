"""Reads of checked samples: wrong ones are fetched again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from fastdata.errors import FastdataError
from fastdata.remote.ranges import RangeCache, RangeRequest
from fastdata.remote.reader import RangeReader
from fastdata.remote.requests import all_of
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
) -> dict[Any, bytes | FastdataError]:
    """Read requests at once; return bytes or an error by key, nothing for wrong members."""
    outcomes: dict[Any, bytes | FastdataError] = {}

    async def read(request: RangeRequest) -> None:
        try:
            await read_checked(reader, cache, request, lambda one, data: take(one.key, data))
        except FastdataError as error:
            for one in request.members:
                outcomes.setdefault(one.key, error)

    take = outcomes.__setitem__

    reader.run(all_of(map(read, requests)))
    return outcomes
