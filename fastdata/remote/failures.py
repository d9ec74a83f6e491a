"""Failures of responses that may pass."""

from __future__ import annotations

from collections.abc import Mapping

PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504, 507, 509}


class TruncatedError(OSError):
    """Error of a response with fewer bytes than the server has, or than requested."""


class StatusError(OSError):
    """Error of a response whose status may be temporary."""

    def __init__(self, status: int, headers: Mapping[str, str], text: str) -> None:
        super().__init__(f"status {status}: {text}")
        self.status, self.headers = status, headers
