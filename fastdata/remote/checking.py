"""Reading of requests whose ranges are compared with their checksums, and read again if wrong."""

from __future__ import annotations

from concurrent.futures import CancelledError

from fastdata.errors import FastdataError, RemoteError
from fastdata.remote.ranges import RangeCache, RangeRequest
from fastdata.remote.reader import RangeReader
from fastdata.remote.retries import describe_error, wait_before
from fastdata.waiting import pause


def read_checked(reader: RangeReader, cache: RangeCache | None, request: RangeRequest) -> None:
    """Read a request, or note why that failed, and which ranges were wrong at every try.

    Wrong ranges are evicted from the cache and read again, without the others. Runs on the
    reader's threads; raises CancelledError alone.
    """
    try:
        _read(reader, cache, request)
    except CancelledError:
        raise
    except FastdataError as error:
        request.error = error
    except Exception as error:  # else what waits for it would wait for ever
        what = f"fetching failed: {describe_error(error)}"
        request.error = RemoteError(what, "Please report this.")


def _read(reader: RangeReader, cache: RangeCache | None, request: RangeRequest) -> None:
    tries = reader.options.tries if cache is None or not cache.only else 1
    left, places = request, list(range(len(request)))
    for number in range(0 if cache is not None else 1, tries + 1):
        if cache is not None and (number == 0 or cache.only):
            data = cache.read(left.file, left.start, left.stop)
        else:
            data = reader.read(left.file.url, left.start, left.stop, careful=number > 1)
        wrong = left.take(data)
        if left is not request:
            for place, begin in zip(places, left.begins, strict=True):
                request.data[place], request.begins[place] = data, begin
        request.wrong = places = [places[at] for at in wrong]
        if not wrong or number == tries:
            return
        reader.counts.refetched += len(wrong)
        left = request.part(places)
        if cache is not None and number == 0:
            cache.drop(left.file, left.start, left.stop)
        else:
            pause(wait_before(number))
