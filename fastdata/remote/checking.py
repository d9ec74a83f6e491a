"""Reading of requests whose ranges are compared with their checksums, and read again if wrong."""

from __future__ import annotations

from fastdata.remote.ranges import RangeCache, RangeRequest
from fastdata.remote.reader import RangeReader
from fastdata.remote.retries import wait_before
from fastdata.remote.workers import sleep


def read_checked(reader: RangeReader, cache: RangeCache | None, request: RangeRequest) -> list[int]:
    """Read a request; return the places of the ranges that were wrong at every try.

    Wrong ranges are evicted from the cache and read again, without the others. Runs on the
    reader's threads.
    """
    tries = reader.options.tries if cache is None or not cache.only else 1
    left, places = request, list(range(len(request)))
    for number in range(0 if cache is not None else 1, tries + 1):
        if cache is not None and (number == 0 or cache.only):
            data = cache.read(left.file, left.start, left.stop)
        else:
            data = reader.read(left.file.url, left.start, left.stop)
        wrong = left.take(data)
        if left is not request:
            for place, begin in zip(places, left.begins, strict=True):
                request.data[place], request.begins[place] = data, begin
        if not wrong:
            return []
        places = [places[at] for at in wrong]
        if number == tries:
            break
        reader.counts.refetched += len(wrong)
        left = request.part(places)
        if cache is not None and number == 0:
            cache.drop(left.file, left.start, left.stop)
        else:
            sleep(wait_before(number))
    return places
