"""From a dense checkpoint to a compressed one, and back into numpy."""
