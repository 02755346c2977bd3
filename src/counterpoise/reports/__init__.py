"""One page on one run: facts first, then words, charts and HTML."""
