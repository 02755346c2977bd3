"""The command line. Read `main` (the commands and their errors), `options` (what commands share), then one command.

Each module named like a command parses, calls the library and prints; `describe` has the sentences that `fit` and
`methods` print, `console` does the printing. Heavy imports stand inside the commands, so that --help is quick.
"""
