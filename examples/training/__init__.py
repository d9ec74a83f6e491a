"""The parts of ``examples/train_imagenet.py``, one subject a file."""
