"""Logs of ratings: what they are, how they are read, and where they come from.

Read in this order: `log` (FeedbackLog, Dataset), `ids` and `columns` (ids to codes, checks of columns), `files` and
`reading` (CSV and Parquet to logs), `splits` (probe and test), `datasets` (`load_dataset`), `simulation` (data whose
propensities and ideal loss are known), `hashing` (one hash for everything that is drawn by a hash), `batches` (what
training asks of a log).
"""
