"""Images of a zoo: reading, splits, shifts, small pictures."""
