"""A saved run over HTTP.

Read `schema` (requests, answers, limits), `lists` (top-k lists in tens of microseconds), `model` (a loaded run), `app`
(the endpoints), `page` (the page at /), `guard` (tokens and hosts), `connections` (how many, for how long), then
`server` (one process) and `processes` (several).
"""
