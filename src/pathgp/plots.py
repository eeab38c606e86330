"""Pictures, with matplotlib (the extra `plots`)."""
