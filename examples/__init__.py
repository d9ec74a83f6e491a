"""Programs that show fastdata at work; installed with it, as ``fastdata.examples``."""
