"""A small shop: the kind of Django service whose slow requests the demo explains."""
