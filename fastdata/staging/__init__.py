"""Copies of datasets on a faster disk, checked and atomic."""
