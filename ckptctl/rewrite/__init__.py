"""A description in, a plan of files out: what converting and consolidating share."""
