"""Operations on a packed dataset: verifying it, and rebuilding its seek points."""
