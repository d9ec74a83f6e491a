"""Converters: sources of images, and their packing into datasets."""

from fastdata.converters.cifar import Cifar
from fastdata.converters.encode import Encoding
from fastdata.converters.imagefolder import ImageFolder
from fastdata.converters.imagenet import ImageNet
from fastdata.converters.packed import PackedDataset, Part
from fastdata.converters.packing import Packed, pack
from fastdata.converters.parquet import ParquetImages
from fastdata.converters.records import Record, Source
from fastdata.converters.webdataset import WebDataset

__all__ = [
    "Cifar",
    "Encoding",
    "ImageFolder",
    "ImageNet",
    "Packed",
    "PackedDataset",
    "ParquetImages",
    "Part",
    "Record",
    "Source",
    "WebDataset",
    "pack",
]
