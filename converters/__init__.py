"""Converters: sources of images, and their packing into datasets."""

from fastdata.converters.arrow import ArrowImages
from fastdata.converters.coco import CocoImages
from fastdata.converters.encode import Encoding
from fastdata.converters.imagefolder import ImageFolder
from fastdata.converters.imagenet import ImageNet
from fastdata.converters.indexing import index
from fastdata.converters.lmdbs import LmdbImages
from fastdata.converters.masks import MaskedImages
from fastdata.converters.options import PackOptions
from fastdata.converters.packed import PackedDataset
from fastdata.converters.packing import PackResult, pack
from fastdata.converters.parquet import ParquetImages
from fastdata.converters.records import ImageSource, Record
from fastdata.converters.table import TableImages
from fastdata.converters.voc import VocImages
from fastdata.converters.webdataset import WebDataset
from fastdata.converters.yolo import YoloImages

__all__ = [
    "ArrowImages",
    "CocoImages",
    "Encoding",
    "ImageFolder",
    "ImageNet",
    "ImageSource",
    "LmdbImages",
    "MaskedImages",
    "PackOptions",
    "PackResult",
    "PackedDataset",
    "ParquetImages",
    "Record",
    "TableImages",
    "VocImages",
    "WebDataset",
    "YoloImages",
    "index",
    "pack",
]
