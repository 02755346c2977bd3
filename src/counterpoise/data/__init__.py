"""Logs and datasets: reading them, splitting them, simulating them.

Read in this order: `log` (FeedbackLog, Dataset), `ids` and `columns` (what a log is made of), `files` and `reading`
(CSV, Parquet, side tables), `datasets` (by name), `splits` (protocols), `simulation`, `batches` (what training asks of
a log).
"""
