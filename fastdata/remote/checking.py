"""Reading of requests whose ranges are compared with their checksums, and read again if wrong."""

from __future__ import annotations

import numpy as np

from fastdata import _native
from fastdata.remote.ranges import Numbers, RangeCache, RangeRequest
from fastdata.remote.reader import RangeReader
from fastdata.remote.retries import wait_before
from fastdata.remote.workers import sleep


def read_checked(reader: RangeReader, cache: RangeCache | None, request: RangeRequest) -> Numbers:
    """Read a request; return the places of the ranges that were wrong at every try.

    Wrong ranges are evicted from the cache and read again, without the others. Runs on the
    reader's threads.
    """
    tries = reader.options.tries if cache is None or not cache.only else 1
    left = np.arange(len(request.members))
    request.data, request.begins = [None] * len(left), request.starts.copy()
    for number in range(0 if cache is not None else 1, tries + 1):
        file, starts, stops = request.file, request.starts[left], request.stops[left]
        start, stop = int(starts.min()), int(stops.max())
        if cache is not None and (number == 0 or cache.only):
            data = cache.read(file, start, stop)
        else:
            data = reader.read(file.url, start, stop)
        for place in left.tolist():
            request.data[place] = data
        request.begins[left] = starts - start
        wrong = _native.wrong_parts(data, starts - start, stops - start, request.checks[left])
        wrong = {*left[wrong].tolist()}
        for place, is_sound in request.sound.items():
            if place in left:
                begin = int(request.begins[place])
                size = int(request.stops[place] - request.starts[place])
                if not is_sound(memoryview(data)[begin : begin + size]):
                    wrong.add(place)
        left = np.array(sorted(wrong), np.int64)
        if not len(left) or number == tries:
            break
        reader.counts.refetched += len(left)
        if cache is not None and number == 0:
            cache.drop(file, int(request.starts[left].min()), int(request.stops[left].max()))
        else:
            sleep(wait_before(number))
    return left
