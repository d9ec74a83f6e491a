"""Operations on a packed dataset: verifying it, and making its seek points anew."""
