"""Bytes on local disks: files, checksums, the manifest, the index, extents, containers."""
