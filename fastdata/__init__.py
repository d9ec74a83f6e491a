"""fastdata feeds image data to PyTorch training."""
