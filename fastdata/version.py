"""The version of fastdata, from its package metadata."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("fastdata")
except PackageNotFoundError:  # run from a source tree that was not installed
    VERSION = "0+unknown"
