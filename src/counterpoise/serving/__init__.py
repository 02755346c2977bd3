"""A saved run over HTTP: recommendations in original ids, a page to look at them, and who is let in."""
