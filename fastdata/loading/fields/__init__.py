"""Fields of batches: their crops, their pixels, their memory; below the dataset."""
