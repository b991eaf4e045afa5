"""Other servers that answer for this daemon."""
