"""Which sample comes when, and which random numbers are its own: pure functions."""
