"""Looks at a result store. Reads it, never writes it."""
