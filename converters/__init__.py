"""Converters: sources of images, and their packing into datasets."""

from fastdata.converters.arrow import ArrowImages
from fastdata.converters.cifar import Cifar
from fastdata.converters.coco import CocoImages
from fastdata.converters.encode import Encoding
from fastdata.converters.imagefolder import ImageFolder
from fastdata.converters.imagenet import ImageNet
from fastdata.converters.indexing import index
from fastdata.converters.lmdbs import LmdbImages
from fastdata.converters.masks import MaskedImages
from fastdata.converters.mds import MdsImages
from fastdata.converters.packed import PackedDataset, Part
from fastdata.converters.packing import Packed, pack
from fastdata.converters.parquet import ParquetImages
from fastdata.converters.records import Record, Source
from fastdata.converters.table import TableImages
from fastdata.converters.voc import VocImages
from fastdata.converters.webdataset import WebDataset
from fastdata.converters.yolo import YoloImages

__all__ = [
    "ArrowImages",
    "Cifar",
    "CocoImages",
    "Encoding",
    "ImageFolder",
    "ImageNet",
    "LmdbImages",
    "MaskedImages",
    "MdsImages",
    "Packed",
    "PackedDataset",
    "ParquetImages",
    "Part",
    "Record",
    "Source",
    "TableImages",
    "VocImages",
    "WebDataset",
    "YoloImages",
    "index",
    "pack",
]
