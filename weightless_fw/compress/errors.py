"""What a user's mistake raises."""


class CompressError(ValueError):
    """Nothing can be compressed, inspected or read as asked: one line says why and what can."""
