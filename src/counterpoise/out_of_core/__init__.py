"""out_of_core."""
