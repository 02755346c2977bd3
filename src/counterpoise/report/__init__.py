"""The report of a run, or of several runs, as one HTML page and a JSON file with the facts behind it.

Facts first, then rendering. Read in this order: `context` (what a report is made from), `facts` (JSON-able numbers),
`path` (facts of the chosen strength), `summary` and `definitions` (sentences), `charts` (SVG), `page` (tables and
figures to HTML), `sections` (facts to tables and figures), `comparison` (facts and page of several runs), `write`
(files).
"""
